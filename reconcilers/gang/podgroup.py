"""Gang scheduling: the PodGroup of a job's workers, and how Pods are added to it.

Its minimum is the job's, and only workers are in it: with other types, the minimum could be reached without
enough workers. PodGroups are read and not watched, since a cluster may not serve them.

* Kubernetes 1.37: https://kubernetes.io/docs/concepts/scheduling-eviction/gang-scheduling/
* Volcano: https://volcano.sh/en/docs/podgroup/
* coscheduling of scheduler-plugins: https://scheduler-plugins.sigs.k8s.io/docs/plugins/coscheduling/
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from controller.resources import Object, Resource
from crds import names
from crds.elasticjob import ElasticJob
from crds.job_spec import Gang
from reconcilers.observed.builder import companion_metadata
from reconcilers.observed.minimum import minimum_workers
from reconcilers.observed.slots import slot_count, training_types
from reconcilers.runtime.kinds import COSCHEDULING_PODGROUPS, KUBERNETES_PODGROUPS, VOLCANO_PODGROUPS

GROUP_LABEL = "scheduling.x-k8s.io/pod-group"
DEFAULT_SCHEDULER = "default-scheduler"
VOLCANO_NAME = "volcano"
VOLCANO_GROUP = "scheduling.k8s.io/group-name"
VOLCANO_TASK = "volcano.sh/task-spec"
VOLCANO_QUEUE = "scheduling.volcano.sh/queue-name"
OF_THE_USER = ("schedulingGroup", "evictionResponders")
"""Fields of a template's spec with which `auto` makes no group: the first names one already, and Kubernetes
refuses Pods with both."""
ENABLE = "the feature gate GenericWorkload of kube-apiserver, kube-controller-manager and kube-scheduler"
INSTALL = {
    Gang.KUBERNETES: (
        f"turn on {ENABLE}, and --runtime-config=scheduling.k8s.io/v1beta1=true of kube-apiserver "
        "(Kubernetes 1.37)"
    ),
    Gang.VOLCANO: "install Volcano (https://volcano.sh)",
    Gang.COSCHEDULING: "install scheduler-plugins (https://scheduler-plugins.sigs.k8s.io)",
}
_RESOURCES = {
    Gang.KUBERNETES: KUBERNETES_PODGROUPS,
    Gang.VOLCANO: VOLCANO_PODGROUPS,
    Gang.COSCHEDULING: COSCHEDULING_PODGROUPS,
}
UNAVAILABLE_RETRY_SECONDS = 30.0
"""Time between two tries in a cluster that does not serve PodGroups."""


@dataclass(frozen=True)
class PodGroup:
    """The PodGroup of one job, in the form of its scheduler."""

    gang: Gang
    resource: Resource
    wanted: Object
    """The object to create."""
    workers: int = 1
    """Number of workers whose Pods may wait for it."""

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
        return minimum_in(self.wanted) or 0

    @property
    def unavailable(self) -> str:
        """Message for a cluster that does not serve these groups."""
        return (
            f"the cluster does not serve {self.resource.group_resource} ({self.resource.version}), which "
            f"spec.schedulingPolicy.gang {self.gang.value} needs: {INSTALL[self.gang]}, "
            f"or set it to {Gang.NONE.value}"
        )

    def as_found(self, found: Object) -> PodGroup:
        """The group with the stored priority class, which Kubernetes does not let anybody change."""
        if self.gang is not Gang.KUBERNETES:
            return self
        spec = {key: value for key, value in self.wanted["spec"].items() if key != "priorityClassName"}
        return replace(self, wanted=self.wanted | {"spec": spec | _priority_of(found["spec"])})

    def enlist(self, pod: Object, member: str) -> None:
        """Add the Pod to the group; `member` is the slot's name."""
        metadata, spec = pod["metadata"], pod["spec"]
        if self.gang is Gang.KUBERNETES:
            # The scheduler does not place a Pod with another priority than its group's: it stays alone.
            if spec.get("priorityClassName") in (None, self.wanted["spec"].get("priorityClassName")):
                spec["schedulingGroup"] = {"podGroupName": self.name}
            return
        if self.gang is Gang.COSCHEDULING:
            metadata["labels"][GROUP_LABEL] = self.name
            return
        metadata["annotations"][VOLCANO_GROUP] = self.name
        # Volcano assumes that Pods of one task fit on the same nodes, and ours avoid different ones.
        metadata["annotations"].setdefault(VOLCANO_TASK, member)
        spec["schedulerName"] = spec.get("schedulerName") or VOLCANO_NAME


def pod_group_of(job: ElasticJob, *, is_offered: bool = False) -> PodGroup | None:
    """The PodGroup of a job; None if its Pods are scheduled one by one.

    Args:
        is_offered: whether the API server serves Kubernetes' own PodGroups, which `auto` then uses.
    """
    minimum = minimum_workers(job)
    gang = _gang_of(job, minimum, is_offered=is_offered)
    if gang is Gang.NONE or not minimum:
        return None
    template = job.spec.replica_specs[names.WORKER].template
    spec: Object = {"minMember": minimum}
    if gang is Gang.KUBERNETES:
        spec = {"schedulingPolicy": {"gang": {"minCount": 1 if is_up(job) else minimum}}}
        spec |= _priority_of(template["spec"])
    elif gang is Gang.VOLCANO:
        spec |= _of_template(template)
    wanted = _RESOURCES[gang].manifest(companion_metadata(job), spec=spec)
    return PodGroup(gang, _RESOURCES[gang], wanted, slot_count(job.spec.replica_specs[names.WORKER]))


def is_up(job: ElasticJob) -> bool:
    """Whether a worker's Pod runs, so that Kubernetes' scheduler need not hold others back.

    The scheduler places a Pod if the members with a node, and those placed with it, reach minCount. With the
    job's minimum, a replacement would wait for the next one whenever fewer are left. Lowering it only then
    would cost the scheduler's back-off, up to 7 s; and Pods with a node do not depend on it. So minCount is 1
    from the first running Pod, by when there was room for the minimum, until none runs.
    """
    counts = job.status.replica_statuses.get(names.WORKER)
    return counts is not None and counts.active + counts.standby > 0


def minimum_in(group: Object) -> int | None:
    """The minimum in a PodGroup of any scheduler."""
    spec = group["spec"]
    gang = (spec.get("schedulingPolicy") or {}).get("gang") or {}
    minimum: int | None = gang.get("minCount", spec.get("minMember"))
    return minimum


def _gang_of(job: ElasticJob, minimum: int, *, is_offered: bool) -> Gang:
    """The gang of a job. `auto` gives none to a job that would not profit, or has another scheduler."""
    gang = job.spec.scheduling_policy.gang
    if gang is not Gang.AUTO:
        return gang
    if not is_offered or minimum < 2 or training_types(job) != [names.WORKER]:
        return Gang.NONE
    spec = job.spec.replica_specs[names.WORKER].template["spec"]
    is_default = (spec.get("schedulerName") or DEFAULT_SCHEDULER) == DEFAULT_SCHEDULER
    return Gang.KUBERNETES if is_default and not any(spec.get(f) for f in OF_THE_USER) else Gang.NONE


def _priority_of(spec: Object) -> Object:
    priority_class = spec.get("priorityClassName")
    return {"priorityClassName": priority_class} if priority_class else {}


def _of_template(template: Object) -> Object:
    """The template's queue and priority, which Volcano reads from the group, and not from its Pods."""
    annotations = (template.get("metadata") or {}).get("annotations") or {}
    queue = annotations.get(VOLCANO_QUEUE)
    return ({"queue": queue} if queue else {}) | _priority_of(template["spec"])
