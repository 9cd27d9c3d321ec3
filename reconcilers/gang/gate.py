"""The gate of a gang: makes Pods wait for their PodGroup, and reports why it is missing."""

from __future__ import annotations

from dataclasses import dataclass

from controller.errors import NotFound
from controller.resources import PODS, Object
from controller.store import ObjectMemory
from crds import names
from crds.elasticjob import ElasticJob
from crds.elasticworker import ElasticWorker
from crds.job_spec import Gang
from reconcilers.gang.choice import GangChoice
from reconcilers.gang.podgroup import (
    ENABLE,
    UNAVAILABLE_RETRY_SECONDS,
    PodGroup,
    minimum_in,
    pod_group_of,
)
from reconcilers.observed.containers import has_ended
from reconcilers.observed.observations import Observations
from reconcilers.observed.ownership import BY_JOB, belongs_to, is_leftover
from reconcilers.runtime.kinds import ELASTICJOBS
from reconcilers.runtime.refused import not_served, retry_seconds
from reconcilers.runtime.tools import Tools
from reconcilers.worker.assignment import STARTS_PER_SECOND, Obstacle

ANSWER_SECONDS = 0.2
RETRY_SECONDS = 0.25
PATIENCE_SECONDS = 2.0
"""Time after which a missing PodGroup is reported; it is created at the same time as the ElasticWorkers."""
LATER_SECONDS = 5.0
UNTRIED_SECONDS = 10.0
"""Time after which a Pod that the scheduler has not tried is reported."""
COUNT_SECONDS = 1.0
"""Time for which all Pods of a gang share a count of them."""

UNAVAILABLE = "GangUnavailable"
TAKEN = "PodGroupTaken"
WAITING = "WaitingForPodGroup"
INCOMPLETE = "PodGroupIncomplete"

Why = tuple[str, str] | None
"""Why the Pods cannot come yet: reason and message."""


@dataclass(frozen=True)
class GroupAnswer:
    """The API server's answer about a PodGroup."""

    at: float
    """Time of the answer, on the monotonic clock."""
    minimum: int
    """Minimum of the job at that time."""
    why: Why
    found: Object | None = None


class GangGate:
    """Holds the workers of a gang back until its PodGroup exists with the job's minimum."""

    def __init__(self, tools: Tools, choice: GangChoice) -> None:
        self._client, self._recorder = tools.client, tools.recorder
        self._choice = choice
        self._monotonic = monotonic = tools.clock.monotonic
        self._jobs = jobs = tools.cache.store(ELASTICJOBS)
        self._pods = tools.cache.store(PODS)
        self._answers: ObjectMemory[GroupAnswer] = jobs.memory()
        self._counts: ObjectMemory[tuple[float, int]] = jobs.memory()
        self._dropped: ObjectMemory[bool] = jobs.memory()
        self._waiting = Observations(jobs, monotonic)
        self._untried = Observations(self._pods, monotonic)

    def enlist(self, pod: Object, worker: ElasticWorker, job: ElasticJob) -> None:
        """Add a worker's Pod to its job's gang, if there is one."""
        if (group := self._chosen_group(worker, job)) is not None:
            answer = self._answers.get(group.owner_uid)
            known = group if answer is None or answer.found is None else group.as_found(answer.found)
            known.enlist(pod, worker.metadata.name)

    async def obstacle(self, worker: ElasticWorker, job: ElasticJob) -> Obstacle | None:
        """Return why a worker's Pod cannot be created yet; None if it may."""
        group = await self._choice.group_of(job) if worker.spec.type == names.WORKER else None
        return None if group is None else await self._obstacle(group)

    def note_created(self, wanted: Object, pod: Object, job: ElasticJob) -> None:
        """Report once for a job that the API server drops the gang of Pods, since its feature gate is off."""
        if "schedulingGroup" not in wanted["spec"] or "schedulingGroup" in pod["spec"]:
            return
        raw = self._jobs.get(job.metadata.namespace, job.metadata.name)
        if raw is None or self._dropped.get(job.metadata.uid):
            return
        self._dropped.put(job.metadata.uid, True)
        message = (
            f"the API server has dropped spec.schedulingGroup of the Pod {pod['metadata']['name']}, so the "
            f"scheduler takes the job's Pods one by one: turn on {ENABLE}, or set "
            f"spec.schedulingPolicy.gang to {Gang.NONE.value}"
        )
        self._recorder.event(raw, "Warning", "SchedulingGroupDropped", message)

    def hold_of(self, pod: Object, worker: ElasticWorker, job: ElasticJob) -> Obstacle | None:
        """Return why the scheduler does not try a Pod on any node, which it only logs."""
        if (name := _group_in(pod)) is None or not _is_untried(pod) or worker.spec.type != names.WORKER:
            return None
        group = pod_group_of(job, is_offered=True)
        if group is None or group.gang is not Gang.KUBERNETES or group.name != name:
            return None
        wait_seconds = UNTRIED_SECONDS - self._untried.age_seconds(pod["metadata"]["uid"], True)
        there = self._count(group, job)
        message = (
            f"the PodGroup {group.name} has {there} of the {group.min_member} Pods for which the scheduler "
            "waits before it looks for nodes; the workers without a Pod have the reason "
            "(kubectl get elasticworkers)"
        )
        is_short = wait_seconds <= 0 and there < group.min_member
        again_seconds = wait_seconds if wait_seconds > 0 else retry_seconds(group.workers, UNTRIED_SECONDS)
        return Obstacle(INCOMPLETE, message, again_seconds, is_reported=is_short)

    def _chosen_group(self, worker: ElasticWorker, job: ElasticJob) -> PodGroup | None:
        """The PodGroup of the worker's Pod."""
        return self._choice.chosen_group_of(job) if worker.spec.type == names.WORKER else None

    def _count(self, group: PodGroup, job: ElasticJob) -> int:
        """Number of Pods that count for the group's minimum: all that have not ended, scheduled or not."""
        now, known = self._monotonic(), self._counts.get(group.owner_uid)
        if known is not None and now - known[0] <= COUNT_SECONDS:
            return known[1]
        pods = self._pods.by_index(BY_JOB, f"{job.metadata.namespace}/{job.metadata.name}")
        there = sum(_group_in(pod) == group.name and not has_ended(pod) for pod in pods)
        return self._counts.put(group.owner_uid, (now, there))[1]

    async def _obstacle(self, group: PodGroup) -> Obstacle | None:
        why = await self._why(group)
        waited_seconds = self._waiting.age_seconds(group.owner_uid, why)
        if why is None:
            return None
        reason, message = why
        if reason != WAITING:
            return Obstacle(reason, message, retry_seconds(group.workers, UNAVAILABLE_RETRY_SECONDS))
        if waited_seconds < PATIENCE_SECONDS:  # few wait yet: the others come when the PodGroup is there
            wait_seconds = max(RETRY_SECONDS, group.workers / STARTS_PER_SECOND)
            return Obstacle(reason, message, wait_seconds, is_reported=False)
        return Obstacle(reason, message, retry_seconds(group.workers, LATER_SECONDS))

    async def _why(self, group: PodGroup) -> Why:
        now, known = self._monotonic(), self._answers.get(group.owner_uid)
        if known is not None and known.minimum == group.min_member and now - known.at <= ANSWER_SECONDS:
            return known.why
        found, why = await self._ask(group)
        self._answers.put(group.owner_uid, GroupAnswer(self._monotonic(), group.min_member, why, found))
        return why

    async def _ask(self, group: PodGroup) -> tuple[Object | None, Why]:
        try:
            found = await self._client.get(group.resource, group.name, group.namespace)
        except NotFound as error:
            if not_served(error):
                return None, (UNAVAILABLE, group.unavailable)
            return None, (WAITING, f"the PodGroup {group.name} has not been created yet")
        return found, _unfitness(found, group)


def _unfitness(found: Object, group: PodGroup) -> Why:
    """Why no Pod may be created with the PodGroup in its present state."""
    if is_leftover(found, group.wanted):
        return WAITING, f"the PodGroup {group.name} of an earlier job of this name has not been replaced yet"
    if not belongs_to(found, group.owner_uid):
        message = (
            f"the PodGroup {group.name} belongs to somebody else: delete it, or give the job another name"
        )
        return TAKEN, message
    if minimum_in(found) != group.min_member:
        return WAITING, f"the PodGroup {group.name} does not have its minimum yet: {group.min_member}"
    return None


def _is_untried(pod: Object) -> bool:
    """Whether a Pod waits for a node, and the scheduler has not tried it."""
    if pod["spec"].get("nodeName") or "deletionTimestamp" in pod["metadata"]:
        return False
    conditions = (pod.get("status") or {}).get("conditions") or ()
    return not any(each.get("type") == "PodScheduled" for each in conditions)


def _group_in(pod: Object) -> str | None:
    name: str | None = (pod["spec"].get("schedulingGroup") or {}).get("podGroupName")
    return name
