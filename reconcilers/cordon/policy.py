"""Which nodes are cordoned, and which cordons are lifted: pure functions.

A decision is the node as it should be. The newest verdict decides, whoever spoke it; those that could not
tell, and stragglers, do not get here. Nothing is undone but what the mark says we did.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace

from reconcilers.cordon.mark import Mark, MarkState, Verdict


@dataclass(frozen=True)
class NodeState:
    """What of a node concerns its cordon, as it is or as it should be."""

    name: str
    mark: Mark | None = None
    taint: str | None = None
    """The value of the taint `unhealthy`, whoever set it; None if there is none."""
    unschedulable: bool = False
    verdict: Verdict | None = None
    """The newest one, that of the mark included."""

    @property
    def cordoned(self) -> bool:
        """By us."""
        return self.mark is not None and self.mark.state is MarkState.CORDONED


def newest(verdicts: Iterable[Verdict]) -> Verdict | None:
    """The one that decides. Of two at the same time it is the accusation: only a newer pass clears."""
    return max(verdicts, key=lambda v: (v.time, not v.healthy, v.kind, v.namespace, v.name), default=None)


def decide(node: NodeState, *, admitted: bool) -> NodeState:
    """The node as it should be.

    Args:
        admitted: whether the limit leaves room for this node's cordon (`admit`).
    """
    if node.mark is not None and node.cordoned and _is_undone(node, node.mark):
        node = _released(node, MarkState.OVERRULED, node.mark.verdict)
    mark, verdict = node.mark, node.verdict
    if verdict is None:
        return node
    if verdict.healthy:
        if mark is None or mark.state is MarkState.LIFTED:
            return node
        return _released(node, MarkState.LIFTED, verdict)
    if mark is not None and mark.state is MarkState.OVERRULED and verdict.time <= mark.verdict.time:
        return node
    if mark is not None and mark.state is MarkState.CORDONED:
        return replace(node, mark=mark.model_copy(update={"verdict": verdict}))
    if not admitted:
        return replace(node, mark=Mark(state=MarkState.HELD, verdict=verdict))
    return _cordoned(node, verdict)


def admit(fleet: Iterable[NodeState], limit: int) -> frozenset[str]:
    """The names of the nodes that may be cordoned: those that are, then the longest accused.

    Args:
        fleet: at least all nodes that are cordoned by us or have an unhealthy verdict.
    """
    cordoned, waiting = set[str](), list[tuple[Verdict, str]]()
    for node in fleet:
        if node.cordoned:
            cordoned.add(node.name)
        elif node.verdict is not None and decide(node, admitted=True).cordoned:
            waiting.append((node.verdict, node.name))
    waiting.sort(key=lambda item: (item[0].time, item[1]))
    room = max(limit - len(cordoned), 0)
    return frozenset(cordoned | {name for _, name in waiting[:room]})


def cordon_limit(nodes: int, percent: int) -> int:
    """How many nodes of a cluster may be cordoned by us at once."""
    return max(1, nodes * percent // 100)


def _is_undone(node: NodeState, mark: Mark) -> bool:
    """Whether something that we set is no longer there."""
    taint_gone = mark.taint is not None and mark.taint != node.taint
    return taint_gone or (mark.unschedulable and not node.unschedulable)


def _cordoned(node: NodeState, verdict: Verdict) -> NodeState:
    """What was there before is left as it is, and not claimed."""
    mark = Mark(
        state=MarkState.CORDONED,
        verdict=verdict,
        taint=verdict.reason if node.taint is None else None,
        unschedulable=not node.unschedulable,
    )
    taint = verdict.reason if node.taint is None else node.taint
    return replace(node, mark=mark, taint=taint, unschedulable=True)


def _released(node: NodeState, state: MarkState, verdict: Verdict) -> NodeState:
    """Without what we set, as far as it is still there."""
    taint, unschedulable = node.taint, node.unschedulable
    if node.mark is not None:
        taint = None if taint == node.mark.taint else taint
        unschedulable = unschedulable and not node.mark.unschedulable
    return replace(node, mark=Mark(state=state, verdict=verdict), taint=taint, unschedulable=unschedulable)
