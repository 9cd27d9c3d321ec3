"""Gang scheduling: the PodGroup of a job's workers, and how its Pods are enlisted in it.

Its minimum is the job's, and workers alone are in it: other types could fill the minimum, and nothing would
train. Pods wait for it. A cluster need not serve PodGroups, so they are read and not watched.

* Volcano: https://volcano.sh/en/docs/podgroup/
* coscheduling of scheduler-plugins: https://scheduler-plugins.sigs.k8s.io/docs/plugins/coscheduling/
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from controller.client import Client
from controller.errors import NotFound
from controller.resources import Object, Resource
from controller.store import Memory, Store
from crds import names
from crds.elasticjob import ElasticJob
from crds.job_spec import Gang
from reconcilers.observed.builder import companion_metadata
from reconcilers.observed.minimum import minimum_workers
from reconcilers.observed.observations import Observations
from reconcilers.observed.ownership import belongs_to, is_leftover
from reconcilers.observed.slots import slot_count
from reconcilers.runtime.kinds import COSCHEDULING_PODGROUPS, VOLCANO_PODGROUPS
from reconcilers.runtime.refused import retry_seconds

GROUP_LABEL = "scheduling.x-k8s.io/pod-group"
VOLCANO_NAME = "volcano"
VOLCANO_GROUP = "scheduling.k8s.io/group-name"
VOLCANO_TASK = "volcano.sh/task-spec"
VOLCANO_QUEUE = "scheduling.volcano.sh/queue-name"
INSTALL = {
    Gang.VOLCANO: "install Volcano (https://volcano.sh)",
    Gang.COSCHEDULING: "install scheduler-plugins (https://scheduler-plugins.sigs.k8s.io)",
}


STARTS_PER_SECOND = 250
"""Pods that a cluster's scheduler manages at least; those of more workers may take as much longer."""
ANSWER_SECONDS = 0.2
RETRY_SECONDS = 0.25
PATIENCE_SECONDS = 2.0
"""A PodGroup is made as its job's ElasticWorkers are; so much later, its absence is worth telling."""
LATER_SECONDS = 5.0
UNAVAILABLE_RETRY_SECONDS = 30.0

UNAVAILABLE = "GangUnavailable"
TAKEN = "PodGroupTaken"
WAITING = "WaitingForPodGroup"

Answer = tuple[str, str] | None
"""Why the Pods cannot come yet: reason and message."""


@dataclass(frozen=True)
class PodGroup:
    """The PodGroup of one job, as its scheduler wants it."""

    gang: Gang
    resource: Resource
    wanted: Object
    """The object to create."""
    workers: int = 1
    """The number of workers whose Pods may wait for it."""

    @property
    def namespace(self) -> str:
        return str(self.wanted["metadata"]["namespace"])

    @property
    def name(self) -> str:
        return str(self.wanted["metadata"]["name"])

    @property
    def owner_uid(self) -> str:
        return str(self.wanted["metadata"]["ownerReferences"][0]["uid"])

    @property
    def min_member(self) -> int:
        return int(self.wanted["spec"]["minMember"])

    @property
    def unavailable(self) -> str:
        """What to say in a cluster that does not know such groups."""
        return (
            f"the cluster does not serve {self.resource.group_resource} ({self.resource.version}), which "
            f"spec.schedulingPolicy.gang {self.gang.value} needs: {INSTALL[self.gang]}, "
            f"or set it to {Gang.NONE.value}"
        )

    def enlist(self, pod: Object, member: str) -> None:
        """Make the Pod one of the group's; `member` is the slot's name."""
        metadata, spec = pod["metadata"], pod["spec"]
        if self.gang is Gang.COSCHEDULING:
            metadata["labels"][GROUP_LABEL] = self.name
            return
        metadata["annotations"][VOLCANO_GROUP] = self.name
        # Volcano takes Pods of one task to fit on the same nodes, and ours differ in which they keep off.
        metadata["annotations"].setdefault(VOLCANO_TASK, member)
        spec["schedulerName"] = spec.get("schedulerName") or VOLCANO_NAME


def pod_group_of(job: ElasticJob) -> PodGroup | None:
    """None if its Pods are scheduled one by one."""
    gang, minimum = job.spec.scheduling_policy.gang, minimum_workers(job)
    if gang is Gang.NONE or not minimum:
        return None
    resource = VOLCANO_PODGROUPS if gang is Gang.VOLCANO else COSCHEDULING_PODGROUPS
    spec: Object = {"minMember": minimum}
    if gang is Gang.VOLCANO:
        spec |= _of_template(job.spec.replica_specs[names.WORKER].template)
    wanted = resource.manifest(companion_metadata(job), spec=spec)
    return PodGroup(gang, resource, wanted, slot_count(job.spec.replica_specs[names.WORKER]))


def _of_template(template: Object) -> Object:
    """Volcano asks the group, and not its Pods, for queue and priority."""
    annotations = (template.get("metadata") or {}).get("annotations") or {}
    found = {
        "queue": annotations.get(VOLCANO_QUEUE),
        "priorityClassName": template["spec"].get("priorityClassName"),
    }
    return {key: value for key, value in found.items() if value}


@dataclass(frozen=True)
class Obstacle:
    """Why a Pod is not made now."""

    reason: str
    message: str
    retry_seconds: float
    worth_telling: bool = True


class GangGate:
    def __init__(self, client: Client, jobs: Store, monotonic: Callable[[], float]) -> None:
        self._client = client
        self._monotonic = monotonic
        self._answers: Memory[tuple[float, int, Answer]] = jobs.memory()
        self._waiting = Observations(jobs, monotonic)

    async def obstacle(self, group: PodGroup) -> Obstacle | None:
        """None: the Pods may come."""
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


def not_served(error: NotFound) -> bool:
    """Whether the kind is unknown to the server, rather than the object: then it names none."""
    return not error.details.get("name")
