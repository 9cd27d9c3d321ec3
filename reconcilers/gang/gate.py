"""The gate of a gang: how often many Pods that wait ask for one PodGroup, and what they say."""

from __future__ import annotations

from collections.abc import Callable

from controller.client import AsyncClient
from controller.errors import NotFound
from controller.resources import Object
from controller.store import ObjectMemory, Store
from crds import names
from crds.elasticjob import ElasticJob
from crds.elasticworker import ElasticWorker
from reconcilers.gang.podgroup import UNAVAILABLE_RETRY_SECONDS, PodGroup, pod_group_of
from reconcilers.observed.observations import Observations
from reconcilers.observed.ownership import belongs_to, is_leftover
from reconcilers.runtime.refused import not_served, retry_seconds
from reconcilers.worker.assignment import STARTS_PER_SECOND, Obstacle

ANSWER_SECONDS = 0.2
RETRY_SECONDS = 0.25
PATIENCE_SECONDS = 2.0
"""A PodGroup is made as its job's ElasticWorkers are; so much later, its absence is worth telling."""
LATER_SECONDS = 5.0

UNAVAILABLE = "GangUnavailable"
TAKEN = "PodGroupTaken"
WAITING = "WaitingForPodGroup"

Answer = tuple[str, str] | None
"""Why the Pods cannot come yet: reason and message."""


class GangGate:
    """Holds the workers of a gang back until its PodGroup is there, as its job wants it."""

    def __init__(self, client: AsyncClient, jobs: Store, monotonic: Callable[[], float]) -> None:
        self._client = client
        self._monotonic = monotonic
        self._answers: ObjectMemory[tuple[float, int, Answer]] = jobs.memory()
        self._waiting = Observations(jobs, monotonic)

    def enlist(self, pod: Object, worker: ElasticWorker, job: ElasticJob) -> None:
        """Make a worker's Pod one of its job's gang, if that has one."""
        if (group := _group_of(worker, job)) is not None:
            group.enlist(pod, worker.metadata.name)

    async def obstacle(self, worker: ElasticWorker, job: ElasticJob) -> Obstacle | None:
        """Return why a worker's Pod cannot come yet; None if it may."""
        group = _group_of(worker, job)
        return None if group is None else await self._obstacle(group)

    async def _obstacle(self, group: PodGroup) -> Obstacle | None:
        answer = await self._answer(group)
        waited_seconds = self._waiting.age_seconds(group.owner_uid, answer)
        if answer is None:
            return None
        reason, message = answer
        if reason != WAITING:
            return Obstacle(reason, message, retry_seconds(group.workers, UNAVAILABLE_RETRY_SECONDS))
        if waited_seconds < PATIENCE_SECONDS:  # few wait yet: the others come when the PodGroup is there
            wait_seconds = max(RETRY_SECONDS, group.workers / STARTS_PER_SECOND)
            return Obstacle(reason, message, wait_seconds, worth_telling=False)
        return Obstacle(reason, message, retry_seconds(group.workers, LATER_SECONDS))

    async def _answer(self, group: PodGroup) -> Answer:
        now, known = self._monotonic(), self._answers.get(group.owner_uid)
        if known is not None and known[1] == group.min_member and now - known[0] <= ANSWER_SECONDS:
            return known[2]
        answer = await self._ask(group)
        self._answers.put(group.owner_uid, (self._monotonic(), group.min_member, answer))
        return answer

    async def _ask(self, group: PodGroup) -> Answer:
        try:
            found = await self._client.get(group.resource, group.name, group.namespace)
        except NotFound as error:
            if not_served(error):
                return UNAVAILABLE, group.unavailable
            return WAITING, f"the PodGroup {group.name} has not been created yet"
        if is_leftover(found, group.wanted):
            return (
                WAITING,
                f"the PodGroup {group.name} of an earlier job of this name has not been replaced yet",
            )
        if not belongs_to(found, group.owner_uid):
            return (
                TAKEN,
                f"the PodGroup {group.name} belongs to somebody else: "
                "delete it, or give the job another name",
            )
        if found["spec"].get("minMember") != group.min_member:
            return WAITING, f"the PodGroup {group.name} does not have its minMember yet: {group.min_member}"
        return None


def _group_of(worker: ElasticWorker, job: ElasticJob) -> PodGroup | None:
    """The PodGroup that the worker's Pod is in."""
    return pod_group_of(job) if worker.spec.type == names.WORKER else None
