"""What Kueue's scheduler finds for one Workload: an admission, Workloads to preempt, or why there is no room."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from enum import IntEnum

from tests.kueue.objects import Info, Object, PodSet, shown
from tests.kueue.quota import ClusterQueue, Quota, Slot


class Mode(IntEnum):
    NO_FIT = 0
    NO_CANDIDATES = 1
    PREEMPT = 2
    FIT = 3


@dataclass(frozen=True, slots=True)
class Plan:
    """What the scheduler would do with a Workload."""

    mode: Mode
    assignments: tuple[Object, ...]
    """status.admission.podSetAssignments."""
    wanted: Mapping[Slot, int]
    short: frozenset[Slot]
    victims: tuple[Info, ...]
    message: str


@dataclass(frozen=True, slots=True)
class _Flavor:
    """One flavor tried for one Pod set."""

    mode: Mode
    slots: Mapping[str, tuple[Mode, int]]
    """Mode and amount of each resource."""
    reasons: list[str]

    def better(self, other: _Flavor | None) -> bool:
        return self.mode is not Mode.NO_FIT and (other is None or self.mode > other.mode)


class Planner:
    """Plans one Workload in one ClusterQueue.

    Args:
        flavors: the ResourceFlavors.
        replaced: what the Workload replaces, if that is charged in the same ClusterQueue.
    """

    def __init__(
        self,
        info: Info,
        queue: ClusterQueue,
        quota: Quota,
        flavors: Mapping[str, Object],
        replaced: Info | None,
    ) -> None:
        self._info = info
        self._queue = queue
        self._quota = quota
        self._flavors = flavors
        self._replaced = replaced

    def plan(self) -> Plan:
        """Try the full counts first, with preemption; only then fewer."""
        sets = self._info.sets
        counts = [each.count for each in sets]
        full = self._with_victims(self._assign(counts))
        if full.mode is Mode.FIT or full.victims:
            return full
        spare = sum(each.count - each.least for each in self._info.sets)
        if not spare:
            return full
        found: dict[int, Plan] = {}

        def fits(fewer: int) -> bool:
            tried = [
                count - fewer if each.least < each.count else count
                for count, each in zip(counts, sets, strict=True)
            ]
            plan = self._with_victims(self._assign(tried))
            if plan.mode is Mode.FIT or plan.victims:
                found[fewer] = plan
                return True
            return False

        return found.get(bisect_left(range(spare + 1), True, key=fits), full)

    def _with_victims(self, plan: Plan) -> Plan:
        if plan.mode in (Mode.FIT, Mode.NO_FIT):
            return plan
        victims = self._quota.victims(self._info, self._queue, self._to_preempt_for(plan), plan.short)
        return replace(plan, victims=tuple(victims))

    def _to_preempt_for(self, plan: Plan) -> Mapping[Slot, int]:
        """Return for how much room is made: with a slice always for its full count, also where less is tried [48b]."""
        if self._replaced is None:
            return plan.wanted
        wanted: dict[Slot, int] = {}
        for each, old, assignment in zip(
            self._info.sets, self._replaced.granted, plan.assignments, strict=False
        ):
            for resource, flavor in assignment["flavors"].items():
                value = each.requests[resource] * (each.count - old.count)
                wanted[flavor, resource] = wanted.get((flavor, resource), 0) + value
        return wanted

    def _assign(self, counts: Sequence[int]) -> Plan:
        wanted: dict[Slot, int] = {}
        short: set[Slot] = set()
        assignments: list[Object] = []
        messages: list[str] = []
        mode = Mode.FIT
        for index, (pod_set, count) in enumerate(zip(self._info.sets, counts, strict=True)):
            flavors, amounts, reasons, set_mode = self._assign_set(index, pod_set, count, wanted)
            mode = min(mode, set_mode)
            if set_mode is not Mode.FIT:
                messages.append(
                    f"couldn't assign flavors to pod set {pod_set.name}: {', '.join(sorted(reasons))}"
                )
            if set_mode is Mode.NO_FIT:
                break
            for slot, (slot_mode, value) in amounts.items():
                wanted[slot] = wanted.get(slot, 0) + value
                if slot_mode is not Mode.FIT:
                    short.add(slot)
            assignments.append(self._assignment(pod_set, count, flavors))
        return Plan(mode, tuple(assignments), wanted, frozenset(short), (), "; ".join(messages))

    def _assignment(self, pod_set: PodSet, count: int, flavors: Mapping[str, str]) -> Object:
        found: Object = {
            "name": pod_set.name,
            "count": count,
            "flavors": dict(flavors),
            "resourceUsage": {name: shown(name, pod_set.requests[name] * count) for name in flavors},
        }
        return found

    def _assign_set(
        self, index: int, pod_set: PodSet, count: int, assumed: Mapping[Slot, int]
    ) -> tuple[dict[str, str], dict[Slot, tuple[Mode, int]], list[str], Mode]:
        flavors: dict[str, str] = {}
        amounts: dict[Slot, tuple[Mode, int]] = {}
        reasons: list[str] = []
        mode = Mode.FIT
        for resource, each in pod_set.requests.items():
            if resource in flavors:
                continue
            group = next((group for group in self._queue.groups if resource in group[0]), None)
            if group is None:
                if each == 0:
                    continue
                return {}, {}, [f"resource {resource} unavailable in ClusterQueue"], Mode.NO_FIT
            best, name, tried = self._best(index, pod_set, count, group, assumed)
            if best is None or best.mode is not Mode.FIT:
                reasons += tried
            if best is None:
                return {}, {}, reasons, Mode.NO_FIT
            mode = min(mode, best.mode)
            for found, slot in best.slots.items():
                flavors[found] = name
                amounts[name, found] = slot
        return flavors, amounts, reasons, mode

    def _best(
        self,
        index: int,
        pod_set: PodSet,
        count: int,
        group: tuple[frozenset[str], tuple[str, ...]],
        assumed: Mapping[Slot, int],
    ) -> tuple[_Flavor | None, str, list[str]]:
        best: _Flavor | None = None
        best_name = ""
        reasons: list[str] = []
        requests = {name: each * count for name, each in pod_set.requests.items() if name in group[0]}
        for name in group[1]:
            unsuitable = self._unsuitable(name, pod_set)
            if unsuitable:
                reasons.append(unsuitable)
                continue
            tried = self._try(index, name, requests, assumed)
            reasons += tried.reasons
            if tried.better(best):
                best, best_name = tried, name
            if tried.mode is Mode.FIT:
                break
        return best, best_name, reasons

    def _unsuitable(self, name: str, pod_set: PodSet) -> str:
        flavor = self._flavors.get(name)
        if flavor is None:
            return f"flavor {name} not found"
        spec = flavor.get("spec") or {}
        labels = spec.get("nodeLabels") or {}
        if any(key in labels and labels[key] != value for key, value in pod_set.selector.items()):
            return f"flavor {name} doesn't match node affinity"
        return ""

    def _try(
        self, index: int, name: str, requests: Mapping[str, int], assumed: Mapping[Slot, int]
    ) -> _Flavor:
        mode = Mode.FIT
        reasons: list[str] = []
        slots: dict[str, tuple[Mode, int]] = {}
        old = (
            self._replaced.granted[index]
            if self._replaced is not None and index < len(self._replaced.granted)
            else None
        )
        for resource, value in requests.items():
            if old is not None:
                original = old.flavors.get(resource, "")
                if original != name:
                    mode = Mode.NO_FIT
                    reasons.append(
                        f"could not assign {name} flavor since the original workload is assigned: {original}"
                    )
                else:
                    value -= old.charged.get(resource, 0)
            slot = name, resource
            fit, message = self._fit(slot, assumed.get(slot, 0), value)
            if message:
                reasons.append(message)
            mode = min(mode, fit)
            slots[resource] = fit, value
        return _Flavor(mode, slots, reasons)

    def _fit(self, slot: Slot, assumed: int, value: int) -> tuple[Mode, str]:
        flavor, resource = slot
        quota, queue = self._quota, self._queue
        total = assumed + value
        capacity = queue.nominal.get(slot, 0)
        if total > capacity:
            message = (
                f"insufficient quota for {resource} in flavor {flavor}, previously considered podsets requests "
                f"({shown(resource, assumed)}) + current podset request ({shown(resource, value)}) > "
                f"maximum capacity ({shown(resource, capacity)})"
            )
            return Mode.NO_FIT, message
        available = quota.available(queue, slot)
        if total <= available:
            return Mode.FIT, ""
        message = (
            f"insufficient unused quota for {resource} in flavor {flavor}, "
            f"{shown(resource, total - available)} more needed"
        )
        victims = quota.victims(self._info, queue, {slot: total}, [slot])
        return Mode.PREEMPT if victims else Mode.NO_CANDIDATES, message
