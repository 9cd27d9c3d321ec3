"""Quota: what the queues have, what is charged, and which Workloads would be preempted for more of it."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field

from tests.kueue.objects import EVICTED, RESERVED, Info, Key, Object, amount, seconds

Slot = tuple[str, str]
"""A flavor and a resource."""
Usage = dict[str, dict[Slot, int]]
"""What is charged, by ClusterQueue."""


@dataclass(frozen=True, slots=True)
class ClusterQueue:
    """What is read of a ClusterQueue."""

    name: str
    strict: bool
    groups: tuple[tuple[frozenset[str], tuple[str, ...]], ...]
    """Resources and flavors of each resource group."""
    nominal: Mapping[Slot, int]
    within: str
    """preemption.withinClusterQueue."""
    checks: tuple[str, ...]


@dataclass(frozen=True)
class Place:
    """The queues of a Workload."""

    local: bool
    """The LocalQueue is there."""
    name: str
    """The ClusterQueue's."""
    queue: ClusterQueue | None
    active: bool
    """The ClusterQueue may admit."""


def cluster_queue(obj: Object) -> ClusterQueue:
    """Read a ClusterQueue.

    Raises:
        NotImplementedError: it asks for something that the stand-in does not model.
    """
    spec = obj.get("spec") or {}
    for name in (
        *("fairSharing", "flavorFungibility", "admissionScope", "concurrentAdmissionPolicy"),
        *("cohortName", "stopPolicy"),
    ):
        if spec.get(name):
            raise NotImplementedError(f"{name} of a ClusterQueue")
    nominal: dict[Slot, int] = {}
    groups = []
    for group in spec.get("resourceGroups") or ():
        groups.append(
            (frozenset(group["coveredResources"]), tuple(each["name"] for each in group["flavors"]))
        )
        for flavor in group["flavors"]:
            for each in flavor["resources"]:
                slot = flavor["name"], each["name"]
                nominal[slot] = amount(each["name"], each["nominalQuota"])
    preemption = spec.get("preemption") or {}
    checks = (spec.get("admissionChecksStrategy") or {}).get("admissionChecks") or ()
    return ClusterQueue(
        name=obj["metadata"]["name"],
        strict=spec.get("queueingStrategy") == "StrictFIFO",
        groups=tuple(groups),
        nominal=nominal,
        within=preemption.get("withinClusterQueue") or "Never",
        checks=tuple(sorted(each["name"] for each in checks)),
    )


def charges(info: Info) -> Iterator[tuple[Slot, int]]:
    for granted in info.granted:
        for resource, value in granted.charged.items():
            yield (granted.flavors.get(resource, ""), resource), value


@dataclass
class Quota:
    """All quota at one moment. It changes only while a preemption is thought through."""

    queues: Mapping[str, ClusterQueue]
    holders: dict[Key, Info]
    """The Workloads that are charged."""
    usage: Usage = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.usage = {name: {} for name in self.queues}
        for info in self.holders.values():
            self.charge(info, 1)

    def charge(self, info: Info, sign: int) -> None:
        queue = self.queues.get(info.cluster_queue)
        if queue is None:
            return
        taken = self.usage[queue.name]
        for slot, value in charges(info):
            taken[slot] = taken.get(slot, 0) + sign * value

    def used(self, queue: str, slot: Slot) -> int:
        return self.usage.get(queue, {}).get(slot, 0)

    def available(self, queue: ClusterQueue, slot: Slot) -> int:
        return max(0, queue.nominal.get(slot, 0) - self.used(queue.name, slot))

    # --- preemption ---------------------------------------------------------------------------------------

    def victims(
        self, info: Info, queue: ClusterQueue, wanted: Mapping[Slot, int], short: Iterable[Slot]
    ) -> list[Info]:
        """Return the Workloads to preempt; none if that would not do.

        Remove one after the other until it fits, then put back whatever was not needed.

        Args:
            wanted: what the Workload would be charged.
            short: where it is not free.
        """
        short = frozenset(short)
        candidates = sorted(
            (each for each in self.holders.values() if self._is_victim(info, each, queue, short)), key=_order
        )
        targets: list[Info] = []
        for each in candidates:
            self.charge(each, -1)
            targets.append(each)
            if self._fits(queue, wanted):
                break
        kept = list(targets) if targets and self._fits(queue, wanted) else []
        for each in reversed(kept[:-1]):
            self.charge(each, 1)
            if self._fits(queue, wanted):
                kept.remove(each)
            else:
                self.charge(each, -1)
        for each in kept or targets:
            self.charge(each, 1)
        return kept

    def _is_victim(self, info: Info, other: Info, queue: ClusterQueue, short: frozenset[Slot]) -> bool:
        there = other.cluster_queue == queue.name and any(slot in short for slot, _ in charges(other))
        return there and _may_preempt(info, other, queue.within)

    def _fits(self, queue: ClusterQueue, wanted: Mapping[Slot, int]) -> bool:
        return all(value <= self.available(queue, slot) for slot, value in wanted.items())


def _may_preempt(info: Info, other: Info, policy: str) -> bool:
    if policy == "LowerPriority":
        return info.priority > other.priority
    if policy == "LowerOrNewerEqualPriority":
        newer = info.priority == other.priority and queued_at(info) < queued_at(other)
        return info.priority > other.priority or newer
    return policy == "Any"


def queued_at(info: Info) -> float:
    """Return since when it stands in the queue: its creation, or the end of what it could not help."""
    evicted = info.conditions.get(EVICTED)
    if (
        evicted
        and evicted["status"] == "True"
        and evicted["reason"] in ("PodsReadyTimeout", "AdmissionCheck")
    ):
        return seconds(evicted["lastTransitionTime"])
    return info.created


def _order(info: Info) -> tuple[object, ...]:
    """Return the order in which candidates go: of low priority, the last ones admitted."""
    reserved = info.conditions[RESERVED]["lastTransitionTime"]
    return not info.true(EVICTED), info.priority, -seconds(reserved), info.number
