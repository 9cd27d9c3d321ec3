"""The scheduling decision, pure: one Pod, the nodes and what is on them, in; a node or the reasons, out."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace

from localcluster.quantities import CPU, MEMORY, PODS, Amounts, add, amounts, pod_requests
from localcluster.resource import JSON
from localcluster.scheduler.constraints import (
    TaintEffect,
    is_ready,
    matches_node,
    preference,
    untolerated_taint,
)

FINISHED_PHASES = frozenset({"Succeeded", "Failed"})


@dataclass
class NodeState:
    """A node and what the Pods on it ask for."""

    node: JSON
    allocatable: Amounts
    used: Amounts = field(default_factory=dict)
    pods: list[JSON] = field(default_factory=list)

    @classmethod
    def of(cls, node: JSON) -> NodeState:
        return cls(node, amounts(node.get("status", {}).get("allocatable")))

    @property
    def name(self) -> str:
        name: str = self.node["metadata"]["name"]
        return name

    def take(self, pod: JSON) -> None:
        """Count a Pod as running here."""
        self.used = add(self.used, pod_requests(pod["spec"]))
        self.pods.append(pod)

    def with_pod(self, pod: JSON) -> NodeState:
        """The node with one Pod more; this state stays as it is."""
        after = replace(self, pods=[*self.pods])
        after.take(pod)
        return after

    def free(self, resource: str) -> int:
        return self.allocatable.get(resource, 0) - self.used.get(resource, 0)


@dataclass(frozen=True)
class Placement:
    """A node, or why there is none."""

    node: str | None
    message: str = ""


def occupies(pod: JSON) -> bool:
    """Whether a Pod holds resources of a node."""
    return bool(pod["spec"].get("nodeName")) and pod.get("status", {}).get("phase") not in FINISHED_PHASES


def node_states(nodes: Iterable[JSON], pods: Iterable[JSON]) -> dict[str, NodeState]:
    states = {state.name: state for state in map(NodeState.of, nodes)}
    for pod in pods:
        if occupies(pod) and (state := states.get(pod["spec"]["nodeName"])) is not None:
            state.take(pod)
    return states


def obstacles(pod: JSON, requests: Amounts, state: NodeState) -> list[str]:
    """Why a Pod cannot run on a node, in Kubernetes' words; nothing where it can.

    Affinity and anti-affinity between Pods have no meaning here: all nodes are this machine.
    """
    spec = pod["spec"]
    tolerations = spec.get("tolerations") or ()
    taints = state.node["spec"].get("taints") or ()
    if state.node["spec"].get("unschedulable") and not _tolerates_cordon(tolerations):
        return ["node(s) were unschedulable"]
    if (taint := untolerated_taint(taints, tolerations)) is not None:
        return [f"node(s) had untolerated taint {{{taint['key']}: {taint.get('value', '')}}}"]
    if not is_ready(state.node):
        return ["node(s) were not ready"]
    if not matches_node(spec, state.node):
        return ["node(s) didn't match Pod's node affinity/selector"]
    return _shortages(requests, state)


def _tolerates_cordon(tolerations: Sequence[JSON]) -> bool:
    cordon = {"key": "node.kubernetes.io/unschedulable", "effect": TaintEffect.NO_SCHEDULE.value}
    return untolerated_taint([cordon], tolerations) is None


def _shortages(requests: Amounts, state: NodeState) -> list[str]:
    short = [name for name, needed in sorted(requests.items()) if needed > 0 and needed > state.free(name)]
    return ["Too many pods" if name == PODS else f"Insufficient {name}" for name in short]


def score(requests: Amounts, state: NodeState, pod: JSON) -> tuple[int, int, float, int]:
    """Lower is better: unpreferred taints, unmet wishes, use of the scarcest resource, number of Pods."""
    tolerations = pod["spec"].get("tolerations") or ()
    avoid = frozenset({TaintEffect.PREFER_NO_SCHEDULE.value})
    unpreferred = untolerated_taint(state.node["spec"].get("taints") or (), tolerations, avoid) is not None
    after = add(state.used, requests)
    counted = {CPU, MEMORY, *requests}
    shares = (after.get(name, 0) / state.allocatable[name] for name in counted if state.allocatable.get(name))
    return int(unpreferred), -preference(pod["spec"], state.node), max(shares, default=0.0), len(state.pods)


def place(pod: JSON, states: dict[str, NodeState]) -> Placement:
    """The node on which the Pod leaves most room, ties by name."""
    if not states:
        return Placement(None, "no nodes available to schedule pods")
    requests = pod_requests(pod["spec"])
    reasons: Counter[str] = Counter()
    fitting: list[NodeState] = []
    for state in states.values():
        against = obstacles(pod, requests, state)
        reasons.update(against)
        if not against:
            fitting.append(state)
    if not fitting:
        listed = ", ".join(sorted(f"{count} {reason}" for reason, count in reasons.items()))
        return Placement(None, f"0/{len(states)} nodes are available: {listed}.")
    best = min(fitting, key=lambda state: (score(requests, state, pod), state.name))
    return Placement(best.name)
