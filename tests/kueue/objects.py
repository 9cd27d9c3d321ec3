"""Reads Workloads: what the stand-in for Kueue decides by."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import lru_cache
from typing import Any

from reconcilers.observed.resources import parse

Object = dict[str, Any]
Key = tuple[str, str]
"""Namespace and name."""
Amounts = Mapping[str, int]
"""By resource, in its smallest unit: thousandths of a CPU, else whole."""

API_VERSION = "kueue.x-k8s.io/v1beta2"
PREFIX = "kueue.x-k8s.io/"
REPLACES = PREFIX + "workload-slice-replacement-for"
ELASTIC = PREFIX + "elastic-job"
GATED_BY = PREFIX + "admission-gated-by"
JOB_UID = PREFIX + "job-uid"
FINALIZER = PREFIX + "resource-in-use"

RESERVED, ADMITTED, EVICTED, PREEMPTED = "QuotaReserved", "Admitted", "Evicted", "Preempted"
FINISHED, REQUEUED, READY, TARGET = "Finished", "Requeued", "PodsReady", "DeactivationTarget"


@lru_cache(4096)
def stamp(second: int) -> str:
    """Return a time as Kubernetes writes it, in whole seconds."""
    return datetime.fromtimestamp(second, UTC).strftime("%Y-%m-%dT%H:%M:%SZ")


@lru_cache(4096)
def seconds(text: str) -> float:
    return datetime.fromisoformat(text).timestamp()


@lru_cache(4096)
def amount(resource: str, quantity: str | int) -> int:
    return int(parse(quantity) * (1000 if resource == "cpu" else 1))


@lru_cache(4096)
def shown(resource: str, value: int) -> str:
    """Return an amount as Kueue prints it."""
    if resource == "cpu":
        return str(value // 1000) if value % 1000 == 0 else f"{value}m"
    if resource in ("memory", "ephemeral-storage"):
        for power, unit in ((4, "Ti"), (3, "Gi"), (2, "Mi"), (1, "Ki")):
            if value and value % 1024**power == 0:
                return f"{value // 1024**power}{unit}"
    return str(value)


@dataclass(frozen=True, slots=True)
class PodSet:
    """One Pod set of a spec."""

    name: str
    count: int
    least: int
    """minCount; the count without one."""
    requests: Amounts
    """Of one Pod."""
    selector: Mapping[str, str]


@dataclass(frozen=True, slots=True)
class Granted:
    """One Pod set of an admission, with what is charged for it now."""

    name: str
    count: int
    flavors: Mapping[str, str]
    """By resource."""
    charged: Amounts


@dataclass(frozen=True, slots=True)
class Info:
    """A version of a Workload."""

    key: Key
    uid: str
    number: int
    """How many Workloads were created before it; for what Kueue decides by uid, which is random."""
    generation: int
    created: float
    spec: Object
    status: Object
    sets: tuple[PodSet, ...]
    shape: Any
    """Equal for those that Kueue's scheduler takes for the same."""
    priority: int
    local_queue: Key
    active: bool
    conditions: Mapping[str, Mapping[str, Any]]
    cluster_queue: str
    """The admitting one; empty without an admission."""
    granted: tuple[Granted, ...]
    replaces: Key | None
    owned: bool
    job_uid: str
    deleted: bool
    finalizers: tuple[str, ...]

    def true(self, kind: str) -> bool:
        found = self.conditions.get(kind)
        return found is not None and found["status"] == "True"

    def false(self, kind: str) -> bool:
        found = self.conditions.get(kind)
        return found is not None and found["status"] == "False"

    @property
    def state(self) -> str:
        for kind in (FINISHED, ADMITTED, RESERVED):
            if self.true(kind):
                return kind
        return "Pending"

    @property
    def admissible(self) -> bool:
        return (
            self.active
            and not self.true(FINISHED)
            and not self.true(RESERVED)
            and (self.conditions.get(RESERVED) or {}).get("reason") != "OnHold"
        )

    @property
    def charged(self) -> bool:
        """Whether it takes of its ClusterQueue's quota. With active=false it does not, released or not [09]."""
        return bool(self.cluster_queue) and self.active and self.true(RESERVED) and not self.true(FINISHED)

    @property
    def checks(self) -> list[Object]:
        return self.status.get("admissionChecks") or []

    @property
    def requeue_at(self) -> float | None:
        text = (self.status.get("requeueState") or {}).get("requeueAt")
        return seconds(text) if text else None


def info_of(obj: Object, number: int) -> Info:
    """Read a Workload."""
    metadata, spec, status = obj["metadata"], obj["spec"], obj.get("status") or {}
    annotations, labels = metadata.get("annotations") or {}, metadata.get("labels") or {}
    sets = tuple(_pod_set(each) for each in spec["podSets"])
    admission = status.get("admission") or {}
    replaces = annotations.get(REPLACES) or ""
    namespace = metadata["namespace"]
    return Info(
        key=(namespace, metadata["name"]),
        uid=metadata["uid"],
        number=number,
        generation=metadata["generation"],
        created=seconds(metadata["creationTimestamp"]),
        spec=spec,
        status=status,
        sets=sets,
        shape=(repr(sets), spec.get("priority", 0)),
        priority=spec.get("priority", 0),
        local_queue=(namespace, spec.get("queueName", "")),
        active=spec.get("active", True),
        conditions={each["type"]: each for each in status.get("conditions") or ()},
        cluster_queue=admission.get("clusterQueue", ""),
        granted=_granted(admission, sets),
        replaces=tuple(replaces.split("/", 1)) if "/" in replaces else None,  # type: ignore[arg-type]
        owned=bool(metadata.get("ownerReferences")),
        job_uid=labels.get(JOB_UID, ""),
        deleted="deletionTimestamp" in metadata,
        finalizers=tuple(metadata.get("finalizers") or ()),
    )


def _pod_set(pod_set: Object) -> PodSet:
    pod = pod_set["template"]["spec"]
    requests: dict[str, int] = {}
    for container in pod.get("containers") or ():
        resources = container.get("resources") or {}
        for name, quantity in {
            **(resources.get("limits") or {}),
            **(resources.get("requests") or {}),
        }.items():
            requests[name] = requests.get(name, 0) + amount(name, quantity)
    return PodSet(
        name=pod_set.get("name", "main"),
        count=pod_set["count"],
        least=pod_set.get("minCount") or pod_set["count"],
        requests=requests,
        selector=pod.get("nodeSelector") or {},
    )


def _granted(admission: Object, sets: Iterable[PodSet]) -> tuple[Granted, ...]:
    """Return what is charged: as admitted, or for as many Pods as there still are if they are fewer."""
    left = {each.name: each.count for each in sets}
    found = []
    for each in admission.get("podSetAssignments") or ():
        usage = {name: amount(name, value) for name, value in (each.get("resourceUsage") or {}).items()}
        count = each.get("count") or 0
        now = min(count, left.get(each["name"], count))
        if now < count:
            usage = {name: value // count * now for name, value in usage.items()}
        found.append(Granted(each["name"], now, each.get("flavors") or {}, usage))
    return tuple(found)


def with_condition(
    status: Object, kind: str, value: bool, reason: str, message: str, at: str, generation: int | None = None
) -> Object:
    """Return a status with a condition set; the very same if it stands there already."""
    conditions = status.get("conditions") or []
    new: Object = {"type": kind, "status": str(value), "reason": reason, "message": message}
    if generation is not None:
        new["observedGeneration"] = generation
    for index, old in enumerate(conditions):
        if old["type"] == kind:
            new["lastTransitionTime"] = old["lastTransitionTime"] if old["status"] == new["status"] else at
            if new == old:
                return status
            return status | {"conditions": [*conditions[:index], new, *conditions[index + 1 :]]}
    return status | {"conditions": [*conditions, new | {"lastTransitionTime": at}]}


def without_condition(status: Object, kind: str) -> Object:
    conditions = status.get("conditions") or []
    return status | {"conditions": [each for each in conditions if each["type"] != kind]}
