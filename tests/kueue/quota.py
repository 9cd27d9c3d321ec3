"""Quota: what the queues have, what is charged, and which Workloads would be preempted for more of it."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
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
    cohort: str
    strict: bool
    stop: str
    groups: tuple[tuple[frozenset[str], tuple[str, ...]], ...]
    """Resources and flavors of each resource group."""
    nominal: Mapping[Slot, int]
    most_borrowed: Mapping[Slot, int]
    within: str
    """preemption.withinClusterQueue."""
    reclaim: str
    """preemption.reclaimWithinCohort."""
    checks: tuple[str, ...]

    @property
    def path(self) -> str:
        return f"/{self.cohort}/{self.name}" if self.cohort else f"/{self.name}"


@dataclass(frozen=True)
class Place:
    """The queues of a Workload."""

    local: bool
    """The LocalQueue is there."""
    local_stop: str
    """Its stopPolicy."""
    name: str
    """The ClusterQueue's."""
    queue: ClusterQueue | None
    active: bool
    """The ClusterQueue may admit."""
    bypassed: str = ""
    """Why the scheduler does not look at Workloads of this shape; empty if it does."""


def cluster_queue(obj: Object) -> ClusterQueue:
    """Read a ClusterQueue.

    Raises:
        NotImplementedError: it asks for something that the stand-in does not model.
    """
    spec = obj.get("spec") or {}
    for name in ("fairSharing", "flavorFungibility", "admissionScope", "concurrentAdmissionPolicy"):
        if spec.get(name):
            raise NotImplementedError(f"{name} of a ClusterQueue")
    nominal: dict[Slot, int] = {}
    borrowed: dict[Slot, int] = {}
    groups = []
    for group in spec.get("resourceGroups") or ():
        groups.append(
            (frozenset(group["coveredResources"]), tuple(each["name"] for each in group["flavors"]))
        )
        for flavor in group["flavors"]:
            for each in flavor["resources"]:
                slot = flavor["name"], each["name"]
                nominal[slot] = amount(each["name"], each["nominalQuota"])
                if each.get("lendingLimit") is not None:
                    raise NotImplementedError("lendingLimit of a ClusterQueue")
                if each.get("borrowingLimit") is not None:
                    borrowed[slot] = amount(each["name"], each["borrowingLimit"])
    preemption = spec.get("preemption") or {}
    if preemption.get("borrowWithinCohort"):
        raise NotImplementedError("borrowWithinCohort of a ClusterQueue")
    checks = (spec.get("admissionChecksStrategy") or {}).get("admissionChecks") or ()
    return ClusterQueue(
        name=obj["metadata"]["name"],
        cohort=spec.get("cohortName") or "",
        strict=spec.get("queueingStrategy") == "StrictFIFO",
        stop=spec.get("stopPolicy") or "None",
        groups=tuple(groups),
        nominal=nominal,
        most_borrowed=borrowed,
        within=preemption.get("withinClusterQueue") or "Never",
        reclaim=preemption.get("reclaimWithinCohort") or "Never",
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
    cohort_usage: dict[str, dict[Slot, int]] = field(default_factory=dict)
    cohorts: dict[str, list[ClusterQueue]] = field(default_factory=dict)

    def __post_init__(self) -> None:
        for queue in self.queues.values():
            self.usage[queue.name] = {}
            if queue.cohort:
                self.cohorts.setdefault(queue.cohort, []).append(queue)
                self.cohort_usage[queue.cohort] = {}
        for info in self.holders.values():
            self.charge(info, 1)

    def charge(self, info: Info, sign: int) -> None:
        queue = self.queues.get(info.cluster_queue)
        if queue is None:
            return
        taken = self.usage[queue.name]
        shared = self.cohort_usage.get(queue.cohort)
        for slot, value in charges(info):
            taken[slot] = taken.get(slot, 0) + sign * value
            if shared is not None:
                shared[slot] = shared.get(slot, 0) + sign * value

    def used(self, queue: str, slot: Slot) -> int:
        return self.usage.get(queue, {}).get(slot, 0)

    def capacity(self, queue: ClusterQueue, slot: Slot) -> int:
        """Return what the queue could have at most."""
        own = queue.nominal.get(slot, 0)
        if not queue.cohort:
            return own
        total = sum(each.nominal.get(slot, 0) for each in self.cohorts[queue.cohort])
        return min(total, own + queue.most_borrowed[slot]) if slot in queue.most_borrowed else total

    def available(self, queue: ClusterQueue, slot: Slot) -> int:
        used = self.used(queue.name, slot)
        if not queue.cohort:
            return max(0, queue.nominal.get(slot, 0) - used)
        total = sum(each.nominal.get(slot, 0) for each in self.cohorts[queue.cohort])
        free = total - self.cohort_usage[queue.cohort].get(slot, 0)
        if slot in queue.most_borrowed:
            free = min(free, queue.nominal.get(slot, 0) + queue.most_borrowed[slot] - used)
        return max(0, free)

    def borrows(self, queue: ClusterQueue, slot: Slot, more: int = 0) -> bool:
        return self.used(queue.name, slot) + more > queue.nominal.get(slot, 0)

    # --- preemption ---------------------------------------------------------------------------------------

    def victims(
        self, info: Info, queue: ClusterQueue, wanted: Mapping[Slot, int], short: Iterable[Slot]
    ) -> list[tuple[Info, str]]:
        """Return the Workloads to preempt, each with the reason; none if that would not do.

        Args:
            wanted: what the Workload would be charged.
            short: where it is not free.
        """
        short = frozenset(short)
        own = [(each, "InClusterQueue") for each in self._in_queue(info, queue, queue, short)]
        entitled = all(not self.borrows(queue, slot, value) for slot, value in wanted.items())
        others = [(each, "InCohortReclamation") for each in self._in_cohort(info, queue, short)]
        order = _order(queue.name)
        found = [*sorted(others, key=order), *sorted(own, key=order)]
        found.sort(key=lambda item: not item[0].true(EVICTED))
        below = all(self.used(queue.name, slot) < queue.nominal.get(slot, 0) for slot in short)
        attempts = [True]
        if others and below:
            attempts = [True, False] if entitled else [False, True]
        for borrowing in attempts:
            targets = self._fewest(found, queue, wanted, short, borrowing, entitled)
            if targets:
                return targets
        return []

    def _in_queue(
        self, info: Info, queue: ClusterQueue, of: ClusterQueue, short: frozenset[Slot]
    ) -> Iterator[Info]:
        policy = queue.within if of is queue else queue.reclaim
        for each in self.holders.values():
            there = each.cluster_queue == of.name and any(slot in short for slot, _ in charges(each))
            if there and _may_preempt(info, each, policy):
                yield each

    def _in_cohort(self, info: Info, queue: ClusterQueue, short: frozenset[Slot]) -> Iterator[Info]:
        if not queue.cohort or queue.reclaim == "Never":
            return
        for each in self.cohorts[queue.cohort]:
            if each is not queue and any(self.borrows(each, slot) for slot in short):
                yield from self._in_queue(info, queue, each, short)

    def _fewest(
        self,
        candidates: list[tuple[Info, str]],
        queue: ClusterQueue,
        wanted: Mapping[Slot, int],
        short: frozenset[Slot],
        borrowing: bool,
        entitled: bool,
    ) -> list[tuple[Info, str]]:
        """Remove one after the other until it fits, then put back whatever was not needed."""
        targets: list[tuple[Info, str]] = []
        fits: Callable[[], bool] = lambda: self._fits(queue, wanted, borrowing)  # noqa: E731
        enough = False
        for info, reason in candidates:
            if info.cluster_queue != queue.name:
                of = self.queues[info.cluster_queue]
                if (borrowing and not entitled) or not any(self.borrows(of, slot) for slot in short):
                    continue
            self.charge(info, -1)
            targets.append((info, reason))
            if enough := fits():
                break
        kept = list(targets)
        if enough:
            for index in range(len(targets) - 2, -1, -1):
                self.charge(targets[index][0], 1)
                if fits():
                    kept.remove(targets[index])
                else:
                    self.charge(targets[index][0], -1)
        for info, _ in kept:
            self.charge(info, 1)
        return kept if enough else []

    def _fits(self, queue: ClusterQueue, wanted: Mapping[Slot, int], borrowing: bool) -> bool:
        return all(
            value <= self.available(queue, slot) and (borrowing or not self.borrows(queue, slot, value))
            for slot, value in wanted.items()
        )


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


def _order(queue: str) -> Callable[[tuple[Info, str]], tuple[object, ...]]:
    """Return the order in which candidates go: others' first, of low priority, the last ones admitted."""

    def order(item: tuple[Info, str]) -> tuple[object, ...]:
        info = item[0]
        reserved = info.conditions[RESERVED]["lastTransitionTime"]
        return (
            not info.true(EVICTED),
            info.cluster_queue == queue,
            info.priority,
            -seconds(reserved),
            info.number,
        )

    return order
