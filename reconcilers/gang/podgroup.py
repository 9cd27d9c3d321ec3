"""Gang scheduling: the PodGroup of a job's workers, and how its Pods are enlisted in it.

Its minimum is the job's, and workers alone are in it: other types could fill the minimum, and nothing would
train. A cluster need not serve PodGroups, so they are read and not watched.

* Volcano: https://volcano.sh/en/docs/podgroup/
* coscheduling of scheduler-plugins: https://scheduler-plugins.sigs.k8s.io/docs/plugins/coscheduling/
"""

from __future__ import annotations

from dataclasses import dataclass

from controller.resources import Object, Resource
from crds import names
from crds.elasticjob import ElasticJob
from crds.job_spec import Gang
from reconcilers.observed.builder import companion_metadata
from reconcilers.observed.minimum import minimum_workers
from reconcilers.observed.slots import slot_count
from reconcilers.runtime.kinds import COSCHEDULING_PODGROUPS, VOLCANO_PODGROUPS

GROUP_LABEL = "scheduling.x-k8s.io/pod-group"
VOLCANO_NAME = "volcano"
VOLCANO_GROUP = "scheduling.k8s.io/group-name"
VOLCANO_TASK = "volcano.sh/task-spec"
VOLCANO_QUEUE = "scheduling.volcano.sh/queue-name"
INSTALL = {
    Gang.VOLCANO: "install Volcano (https://volcano.sh)",
    Gang.COSCHEDULING: "install scheduler-plugins (https://scheduler-plugins.sigs.k8s.io)",
}
UNAVAILABLE_RETRY_SECONDS = 30.0
"""Time between two tries in a cluster that does not serve PodGroups."""


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
