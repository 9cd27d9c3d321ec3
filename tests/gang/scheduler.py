"""A stand-in for the gangs of kube-scheduler 1.37, made from what the real one did (`traces/`). Pure.

`test_scheduler.py` plays each trace against it. It knows one resource, and no preemption.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

JSON = dict[str, Any]
GPU = "example.com/gpu"
CLASSES = {None: 0, "pg-low": 100, "pg-high": 1_000}
"""Priority by class."""
VICTIMS = "pod group preemption: No preemption victims found for incoming preemptor"
ENDED = ("Succeeded", "Failed")


@dataclass(frozen=True)
class Verdict:
    """What the scheduler makes of a Pod that it tries."""

    pod: str
    node: str | None = None
    reason: str = "Unschedulable"
    message: str = ""

    def patch(self) -> JSON:
        """The change of the Pod."""
        if self.node is not None:
            bound = {"type": "PodScheduled", "status": "True"}
            return {"spec": {"nodeName": self.node}, "status": {"conditions": [bound]}}
        refused = {"type": "PodScheduled", "status": "False", "reason": self.reason, "message": self.message}
        return {"status": {"conditions": [refused]}}


def decide(pods: Sequence[JSON], groups: Mapping[str, JSON], gpus: Mapping[str, int]) -> list[Verdict]:
    """Decide for the Pods without a node, in their order; a gang at once, with its first.

    Args:
        groups: PodGroups by name.
        gpus: GPUs of each node.
    """
    free = dict(gpus)
    for pod in filter(_counts, pods):
        if node := pod["spec"].get("nodeName"):
            free[node] -= _request(pod)
    waiting: dict[str, list[JSON]] = {}
    for pod in pods:
        if not pod["spec"].get("nodeName") and _counts(pod) and "deletionTimestamp" not in pod["metadata"]:
            waiting.setdefault(_group_of(pod) or f"alone {pod['metadata']['name']}", []).append(pod)
    found: list[Verdict] = []
    for name, candidates in waiting.items():
        if _group_of(candidates[0]) is None:
            found += _placed(candidates, free)
        elif (group := groups.get(name)) is not None:
            members = [pod for pod in pods if _group_of(pod) == name and _counts(pod)]
            found += _gang(group, members, candidates, free)
    return found


def _gang(
    group: JSON, members: Sequence[JSON], waiting: Sequence[JSON], free: dict[str, int]
) -> Iterable[Verdict]:
    minimum = group["spec"]["schedulingPolicy"]["gang"]["minCount"]
    if len(members) < minimum:
        return []  # not even a condition
    priority = CLASSES[group["spec"].get("priorityClassName")]
    for pod in members:
        if (own := CLASSES[pod["spec"].get("priorityClassName")]) != priority:
            why = "all pods in a single pod group should have the same priority as the pod group's priority"
            message = f"{why}, got {own} and {priority}"
            return [Verdict(each["metadata"]["name"], None, "SchedulerError", message) for each in waiting]
    tried = dict(free)
    verdicts = list(_placed(waiting, tried))
    placed = len(members) - len(waiting) + sum(each.node is not None for each in verdicts)
    if placed >= minimum:
        free.update(tried)
        return verdicts
    unfit = f"minCount ({minimum}) cannot be satisfied: {placed} scheduled, 0 remaining"
    message = f"pod group is unschedulable, {unfit}, {VICTIMS}"
    return [Verdict(each.pod, message=message) if each.node else each for each in verdicts]


def _placed(pods: Iterable[JSON], free: dict[str, int]) -> Iterator[Verdict]:
    for pod in pods:
        name, wanted = pod["metadata"]["name"], _request(pod)
        node = next((node for node, left in free.items() if left >= wanted), None)
        if node is None:
            lacking = f"{len(free)} Insufficient {GPU}"
            yield Verdict(name, message=f"0/{len(free)} nodes are available: {lacking}.")
            continue
        free[node] -= wanted
        yield Verdict(name, node)


def _counts(pod: JSON) -> bool:
    """Whether a Pod holds its node, and its place in the gang: one that is being deleted does."""
    return (pod.get("status") or {}).get("phase") not in ENDED


def _group_of(pod: JSON) -> str | None:
    name: str | None = (pod["spec"].get("schedulingGroup") or {}).get("podGroupName")
    return name


def _request(pod: JSON) -> int:
    containers = pod["spec"]["containers"]
    return sum(int(((c.get("resources") or {}).get("requests") or {}).get(GPU, 0)) for c in containers)
