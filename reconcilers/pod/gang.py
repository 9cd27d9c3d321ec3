"""Gang scheduling: the PodGroup of a job's workers, and how its Pods are enlisted in it.

The group's minimum is the job's: none of its Pods is placed before there is room for that many. Workers alone
are in it: other types (parameter servers, evaluators) could fill the minimum, and nothing would train.

* Volcano: https://volcano.sh/en/docs/podgroup/
* coscheduling of scheduler-plugins: https://scheduler-plugins.sigs.k8s.io/docs/plugins/coscheduling/
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from controller.resources import COSCHEDULING_PODGROUPS, VOLCANO_PODGROUPS, Resource
from crds import names
from crds.elasticjob import ElasticJob, Gang
from reconcilers.pod.disruption_budget import metadata_of
from reconcilers.world.minimum import minimum_workers

Object = dict[str, Any]

GROUP_LABEL = "scheduling.x-k8s.io/pod-group"
VOLCANO_NAME = "volcano"
VOLCANO_GROUP = "scheduling.k8s.io/group-name"
VOLCANO_TASK = "volcano.sh/task-spec"
VOLCANO_QUEUE = "scheduling.volcano.sh/queue-name"
INSTALL = {
    Gang.VOLCANO: "install Volcano (https://volcano.sh)",
    Gang.COSCHEDULING: "install scheduler-plugins (https://scheduler-plugins.sigs.k8s.io)",
}


@dataclass(frozen=True)
class PodGroup:
    """Of one job, as its scheduler wants it."""

    gang: Gang
    resource: Resource
    wanted: Object
    """The object to create."""

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
    wanted = {
        "apiVersion": resource.api_version,
        "kind": resource.kind,
        "metadata": metadata_of(job),
        "spec": spec,
    }
    return PodGroup(gang, resource, wanted)


def _of_template(template: Object) -> Object:
    """Volcano asks the group, and not its Pods, for queue and priority."""
    annotations = (template.get("metadata") or {}).get("annotations") or {}
    found = {
        "queue": annotations.get(VOLCANO_QUEUE),
        "priorityClassName": template["spec"].get("priorityClassName"),
    }
    return {key: value for key, value in found.items() if value}
