"""Gangs: no Pod of a PodGroup gets a node until as many as its minimum can get one at once.

One pure decision about all Pods that wait, as the coscheduling plugin of scheduler-plugins makes it:
https://scheduler-plugins.sigs.k8s.io/docs/plugins/coscheduling/. Nothing is set aside for a gang that does
not fit, so Pods behind it in the queue go on.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from localcluster.quantities import amounts, pod_requests, total
from localcluster.resource import JSON
from localcluster.scheduler.decision import NodeState, Placement, place

POD_GROUP_LABEL = "scheduling.x-k8s.io/pod-group"

GroupKey = tuple[str, str]
"""(namespace, name)"""
States = dict[str, NodeState]


@dataclass(frozen=True)
class Decided:
    """A Pod that waited, and its node or why it has none."""

    pod: JSON
    placement: Placement


@dataclass(frozen=True)
class _Entry:
    """Unit of one decision: a Pod, or all waiting Pods of a PodGroup."""

    group: GroupKey | None
    pods: list[JSON]


def group_of(pod: JSON) -> GroupKey | None:
    """The PodGroup that a Pod says it belongs to."""
    name = (pod["metadata"].get("labels") or {}).get(POD_GROUP_LABEL)
    return (pod["metadata"]["namespace"], name) if name else None


def min_member(group: JSON) -> int:
    minimum: int = (group.get("spec") or {}).get("minMember", 0)
    return minimum


def decide(waiting: Iterable[JSON], groups: Mapping[GroupKey, JSON], states: States) -> list[Decided]:
    """Decide for all waiting Pods in the queue's order. `states` then count those with a node as running."""
    bound = _bound_members(states)
    decided: list[Decided] = []
    for entry in _queue(waiting, groups):
        if entry.group is None:
            decided += _place_each(entry.pods, states)
        else:
            group = groups.get(entry.group)
            decided += _place_gang(entry, group, bound.get(entry.group, ()), states)
    return decided


def _bound_members(states: States) -> dict[GroupKey, list[JSON]]:
    """Return the bound members by group. A terminating Pod is none to be scheduled with."""
    members: dict[GroupKey, list[JSON]] = {}
    for state in states.values():
        for pod in state.pods:
            key = group_of(pod)
            if key is not None and "deletionTimestamp" not in pod["metadata"]:
                members.setdefault(key, []).append(pod)
    return members


def _queue(waiting: Iterable[JSON], groups: Mapping[GroupKey, JSON]) -> list[_Entry]:
    """Highest priority first, then oldest: a gang is as old as its PodGroup."""
    gangs: dict[GroupKey, list[JSON]] = {}
    alone: list[_Entry] = []
    for pod in sorted(waiting, key=_pod_order):
        if (key := group_of(pod)) is None:
            alone.append(_Entry(None, [pod]))
        else:
            gangs.setdefault(key, []).append(pod)

    def order(entry: _Entry) -> tuple[int, str, str, str]:
        priority, created, namespace, name = _pod_order(entry.pods[0])
        if entry.group is not None and (group := groups.get(entry.group)) is not None:
            created, name = group["metadata"].get("creationTimestamp") or "", entry.group[1]
        return priority, created, namespace, name

    return sorted([*alone, *(_Entry(key, pods) for key, pods in gangs.items())], key=order)


def _pod_order(pod: JSON) -> tuple[int, str, str, str]:
    metadata = pod["metadata"]
    created = metadata.get("creationTimestamp") or ""
    return -(pod["spec"].get("priority") or 0), created, metadata["namespace"], metadata["name"]


def _place_each(pods: Iterable[JSON], states: States) -> list[Decided]:
    decided = []
    for pod in pods:
        placement = place(pod, states)
        if placement.node is not None:
            states[placement.node] = states[placement.node].with_pod(pod)
        decided.append(Decided(pod, placement))
    return decided


def _place_gang(entry: _Entry, group: JSON | None, bound: Sequence[JSON], states: States) -> list[Decided]:
    """Place as many as fit, or none of them."""
    why = _hopeless(entry, group, bound, states)
    if group is not None and not why:
        trial = dict(states)
        decided = _place_each(entry.pods, trial)
        placed = sum(each.placement.node is not None for each in decided)
        if len(bound) + placed >= min_member(group):
            states.update(trial)
            return decided
        obstacle = next(each.placement.message for each in decided if each.placement.node is None)
        why = (
            f"PodGroup {_named(entry)} needs {min_member(group)} Pods with a node at once, "
            f"{len(bound)} have one and {placed} could get one: {obstacle}"
        )
    return [Decided(pod, Placement(None, why)) for pod in entry.pods]


def _hopeless(entry: _Entry, group: JSON | None, bound: Sequence[JSON], states: States) -> str:
    """Why no placement need be tried; nothing where it may succeed."""
    if group is None:
        return f"PodGroup {_named(entry)} not found"
    if len(bound) + len(entry.pods) < min_member(group):
        # How many there are is left out: each Pod that comes would change what all before it are told.
        return f"PodGroup {_named(entry)} needs {min_member(group)} Pods at once, and some are still to come"
    if short := _resource_gap(group, bound, states):
        return f"PodGroup {_named(entry)} needs more {', '.join(short)} than is free: its minResources say so"
    return ""


def _resource_gap(group: JSON, bound: Sequence[JSON], states: States) -> list[str]:
    """Return the resources that are short: free, with the gang's own use, less than the group needs."""
    available: Counter[str] = Counter(total(pod_requests(pod["spec"]) for pod in bound))
    needed = amounts((group.get("spec") or {}).get("minResources"))
    for resource in needed:
        available[resource] += sum(state.free(resource) for state in states.values())
    return sorted(resource for resource, amount in needed.items() if amount > available[resource])


def _named(entry: _Entry) -> str:
    return "/".join(entry.group or ())
