"""A Workload, as far as decisions read it.

https://github.com/kubernetes-sigs/kueue/blob/v0.19.1/apis/kueue/v1beta2/workload_types.go
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from controller.resources import Object, Resource
from crds import names
from reconcilers.observed.ownership import owner_uids

GROUP = "kueue.x-k8s.io"
WORKLOADS = Resource(GROUP, "v1beta2", "workloads", "Workload")
LOCALQUEUES = Resource(GROUP, "v1beta2", "localqueues", "LocalQueue")
CLUSTERQUEUES = Resource(GROUP, "v1beta2", "clusterqueues", "ClusterQueue", namespaced=False)
FLAVORS = Resource(GROUP, "v1beta2", "resourceflavors", "ResourceFlavor", namespaced=False)
PRIORITIES = Resource(GROUP, "v1beta2", "workloadpriorityclasses", "WorkloadPriorityClass", namespaced=False)
POD_PRIORITIES = Resource("scheduling.k8s.io", "v1", "priorityclasses", "PriorityClass", namespaced=False)

QUEUE_LABEL = f"{GROUP}/queue-name"
PRIORITY_LABEL = f"{GROUP}/priority-class"
GROWTH_PRIORITY = f"{names.GROUP}/growth-priority-class"
"""Label of a job: the WorkloadPriorityClass by which it waits for more than it has."""
JOB_UID_LABEL = f"{GROUP}/job-uid"
REPLACES = f"{GROUP}/workload-slice-replacement-for"
FINALIZER = f"{GROUP}/resource-in-use"

DIGEST = f"{names.GROUP}/template-digest"
"""Digest of all that a queue charges for, or chooses flavors by."""
PAUSED = f"{names.GROUP}/paused"
"""Set with `active: false` where that is for us to take back."""

PREEMPTED = "Preempted"
REPLACED = "WorkloadSliceReplaced"


def queue_of(job: Object) -> str:
    """The LocalQueue that a job is to wait in; empty if it does not."""
    return str((job["metadata"].get("labels") or {}).get(QUEUE_LABEL, ""))


def job_uids(workload: Object) -> Iterable[str]:
    """The jobs that a Workload is for: its owners, and the one that its label names, which has taken its name
    even if somebody has edited its owners."""
    label = (workload["metadata"].get("labels") or {}).get(JOB_UID_LABEL)
    return dict.fromkeys([*owner_uids(workload), *([label] if label else [])])


def is_swappable(priority: Object) -> bool:
    """Whether a Workload with quota may have another class of the same kind in place of this one."""
    return bool((priority.get("priorityClassRef") or {}).get("kind") == PRIORITIES.kind)


@dataclass(frozen=True)
class Workload:
    raw: Object
    """The object as it is stored."""

    @property
    def name(self) -> str:
        return str(self.raw["metadata"]["name"])

    @property
    def uid(self) -> str:
        return str(self.raw["metadata"]["uid"])

    @property
    def number(self) -> int:
        """Its place among those that its job has had: the end of its name, which nobody can edit."""
        end = self.name.rpartition("-")[2]
        return int(end) if end.isascii() and end.isdecimal() and len(end) < 10 else 0

    @property
    def is_deleted(self) -> bool:
        return bool(self.raw["metadata"].get("deletionTimestamp"))

    @property
    def has_finalizer(self) -> bool:
        return FINALIZER in (self.raw["metadata"].get("finalizers") or ())

    @property
    def annotations(self) -> Mapping[str, str]:
        return self.raw["metadata"].get("annotations") or {}

    @property
    def replaces(self) -> str:
        """The name of the Workload that this one is a slice of; empty if it is none."""
        return self.annotations.get(REPLACES, "").rpartition("/")[2]

    @property
    def digest(self) -> str:
        return self.annotations.get(DIGEST, "")

    @property
    def is_paused(self) -> bool:
        """Whether it is inactive until the job goes on."""
        return PAUSED in self.annotations

    @property
    def is_active(self) -> bool:
        return bool(self.raw["spec"].get("active", True))

    @property
    def queue(self) -> str:
        return str(self.raw["spec"].get("queueName", ""))

    @property
    def priority(self) -> Object:
        """Class and value."""
        return {
            key: self.raw["spec"][key] for key in ("priorityClassRef", "priority") if key in self.raw["spec"]
        }

    def with_priority(self, wanted: Object) -> Object:
        """Return the merge patch of its spec that gives it this class and value, or none; empty if it has the
        class: Kueue copies the value of a class that is changed later."""
        asked = {"priorityClassRef": None, "priority": 0} | wanted
        has = {"priorityClassRef": None, "priority": 0} | self.priority
        is_same = has == asked or (
            is_swappable(asked) and has["priorityClassRef"] == asked["priorityClassRef"]
        )
        return {} if is_same else asked

    @property
    def pod_sets(self) -> list[Object]:
        return list(self.raw["spec"].get("podSets") or ())

    @property
    def status(self) -> Object:
        return self.raw.get("status") or {}

    @cached_property
    def conditions(self) -> Mapping[str, Object]:
        """The conditions by type."""
        return {each["type"]: each for each in self.status.get("conditions") or ()}

    def is_true(self, type_: str) -> bool:
        return bool(self.conditions.get(type_, {}).get("status") == "True")

    @property
    def is_finished(self) -> bool:
        return self.is_true("Finished")

    @property
    def is_evicted(self) -> bool:
        """Whether it is to give its quota back. Evicted stays True until the next reservation."""
        return self.has_quota and self.is_true("Evicted")

    @property
    def has_quota(self) -> bool:
        return self.is_true("QuotaReserved")

    @property
    def is_admitted(self) -> bool:
        return self.has_quota and self.is_true("Admitted")

    @property
    def has_checks(self) -> bool:
        return bool(self.status.get("admissionChecks"))

    def count(self, pod_set: str) -> int:
        """The count that is asked for."""
        return next((int(each["count"]) for each in self.pod_sets if each["name"] == pod_set), 0)

    def floor(self, pod_set: str) -> int:
        """The least that the count can be lowered to while it has quota."""
        return next((int(each.get("minCount") or 0) for each in self.pod_sets if each["name"] == pod_set), 0)

    def assignment(self, pod_set: str) -> Mapping[str, Any]:
        admission = self.status.get("admission") or {}
        found = (each for each in admission.get("podSetAssignments") or () if each["name"] == pod_set)
        return next(found, {})

    def granted(self, pod_set: str) -> int:
        """How many Pods are charged; 0 without quota.

        A count that is lowered frees its quota at once, and the assignment keeps what it was.
        """
        if not self.has_quota:
            return 0
        count = self.count(pod_set)
        return min(count, int(self.assignment(pod_set).get("count", count)))
