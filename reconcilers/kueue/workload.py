"""A Workload, with the fields on which decisions depend.

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
"""Label of a job with the WorkloadPriorityClass with which it waits to grow."""
JOB_UID_LABEL = f"{GROUP}/job-uid"
REPLACES = f"{GROUP}/workload-slice-replacement-for"
FINALIZER = f"{GROUP}/resource-in-use"

DIGEST = f"{names.GROUP}/template-digest"
"""Annotation with the digest of all that a queue charges for, or chooses flavors by."""
PAUSED = f"{names.GROUP}/paused"
"""Annotation beside an `active: false` that we set, and may take back."""

PREEMPTED = "Preempted"
REPLACED = "WorkloadSliceReplaced"


def queue_of(job: Object) -> str:
    """The LocalQueue of a job; empty if it has none."""
    return str((job["metadata"].get("labels") or {}).get(QUEUE_LABEL, ""))


def job_uids(workload: Object) -> Iterable[str]:
    """Index function: the jobs of a Workload, which are its owners and the one that its label names, in case
    somebody has edited the owners."""
    label = (workload["metadata"].get("labels") or {}).get(JOB_UID_LABEL)
    return dict.fromkeys([*owner_uids(workload), *([label] if label else [])])


def is_swappable(priority: Object) -> bool:
    """Whether the class of a Workload with quota may be replaced by another of its kind."""
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
        """Its number among the job's Workloads, from the end of its name, which nobody can edit."""
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
        """The name of the Workload of which this one is a slice; empty if it is none."""
        return self.annotations.get(REPLACES, "").rpartition("/")[2]

    @property
    def digest(self) -> str:
        return self.annotations.get(DIGEST, "")

    @property
    def is_paused(self) -> bool:
        """Whether we have made it inactive until the job goes on."""
        return PAUSED in self.annotations

    @property
    def is_active(self) -> bool:
        return bool(self.raw["spec"].get("active", True))

    @property
    def queue(self) -> str:
        return str(self.raw["spec"].get("queueName", ""))

    @property
    def priority(self) -> Object:
        """Class and value of the priority, as fields of a Workload's spec."""
        return {
            key: self.raw["spec"][key] for key in ("priorityClassRef", "priority") if key in self.raw["spec"]
        }

    def with_priority(self, wanted: Object) -> Object:
        """Return the merge patch of the spec that sets this class and value; empty if it has the class, since
        Kueue itself copies a later change of a class's value."""
        wanted = {"priorityClassRef": None, "priority": 0} | wanted
        has = {"priorityClassRef": None, "priority": 0} | self.priority
        is_same = has == wanted or (
            is_swappable(wanted) and has["priorityClassRef"] == wanted["priorityClassRef"]
        )
        return {} if is_same else wanted

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
        """Whether it has to give its quota back. Evicted stays True until the next reservation."""
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
        """The requested number of Pods."""
        return next((int(each["count"]) for each in self.pod_sets if each["name"] == pod_set), 0)

    def floor(self, pod_set: str) -> int:
        """The minimum to which the count can be lowered while it has quota."""
        return next((int(each.get("minCount") or 0) for each in self.pod_sets if each["name"] == pod_set), 0)

    def assignment(self, pod_set: str) -> Mapping[str, Any]:
        admission = self.status.get("admission") or {}
        found = (each for each in admission.get("podSetAssignments") or () if each["name"] == pod_set)
        return next(found, {})

    def granted(self, pod_set: str) -> int:
        """Number of charged Pods; 0 without quota.

        A lowered count frees its quota at once, although the assignment stays as it was.
        """
        if not self.has_quota:
            return 0
        count = self.count(pod_set)
        return min(count, int(self.assignment(pod_set).get("count", count)))
