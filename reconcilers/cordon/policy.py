"""Which nodes are cordoned, which cordons are lifted, and what people are told of it: pure functions.

A decision is the node as it should be. The newest verdict decides, whoever spoke it; those that could not
tell, and stragglers, do not get here. Nothing is undone but what the mark says we did.

The mark is one annotation on the Node. It says what we set there, and on whose verdict; so a cordon that is
not ours is never lifted. It remembers the verdict when the NodeCheck or the job that it came from is gone, so
that a report from before the last passing check does not count again then.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace
from datetime import datetime
from enum import StrEnum
from typing import Any

from pydantic import ValidationError

from controller.events import EventType
from crds import names
from crds.model import ConditionStatus, Model
from reconcilers.cordon.options import CordonMode, CordonOptions


class VerdictReason(StrEnum):
    """Values of our taint, and reasons of our condition."""

    CHECK_FAILED = "CheckFailed"
    HARDWARE_ERROR = "HardwareError"
    CHECK_PASSED = "CheckPassed"


class Verdict(Model):
    """What one check or one job's worker says about one node."""

    time: datetime
    healthy: bool
    reason: str
    """A `VerdictReason`, or one of a newer controller: its marks must stay readable."""
    kind: str
    namespace: str
    name: str
    """With kind and namespace: the object that says so."""


class MarkState(StrEnum):
    CORDONED = "Cordoned"
    HELD = "Held"
    """To be cordoned, when the limit leaves room."""
    OVERRULED = "Overruled"
    """A person undid the cordon; that stands until there is a newer verdict."""
    LIFTED = "Lifted"
    """The newest verdict says that the node is well."""


class Mark(Model):
    state: MarkState
    verdict: Verdict
    """The newest that has been acted upon."""
    taint: str | None = None
    """The value of the taint that we set; None if we set none."""
    unschedulable: bool = False
    """Whether it was us who set spec.unschedulable."""


def read_mark(node: dict[str, Any]) -> Mark | None:
    """A mark that somebody made unreadable is none: then nothing on the node is known to be ours."""
    written = (node["metadata"].get("annotations") or {}).get(names.ANNOTATION_CORDON)
    if written is None:
        return None
    try:
        return Mark.model_validate_json(written)
    except ValidationError:
        return None


def write_mark(mark: Mark) -> str:
    return mark.model_dump_json(by_alias=True, exclude_none=True)


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


def newest_verdict(verdicts: Iterable[Verdict]) -> Verdict | None:
    """The one that decides. Of two at the same time it is the accusation: only a newer pass clears."""
    return max(verdicts, key=lambda v: (v.time, not v.healthy, v.kind, v.namespace, v.name), default=None)


def decide_cordon(node: NodeState, *, admitted: bool) -> NodeState:
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
        elif node.verdict is not None and decide_cordon(node, admitted=True).cordoned:
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


HELD = "CordonHeld"
"""Reason of the condition while the limit keeps a faulty node in service."""


@dataclass(frozen=True)
class Statement:
    status: ConditionStatus
    reason: str
    message: str
    event_type: EventType
    event_reason: str


def statement_on(
    node: NodeState, wanted: NodeState, options: CordonOptions, *, accused: bool
) -> Statement | None:
    """What to say of a node; None to leave what is said as it is.

    Args:
        node: as it was found.
        wanted: as `decide_cordon` wants it, which a dry run does not make true.
        accused: whether the condition is True now, so that it has to be taken back.
    """
    if wanted.mark is not None and wanted.mark.state is not MarkState.LIFTED:
        dry = options.mode is CordonMode.REPORT and not node.cordoned
        return _accusation(wanted.mark, options, dry=dry)
    if accused or node.cordoned:
        return _acquittal(wanted, options)
    return None


def _accusation(mark: Mark, options: CordonOptions, *, dry: bool) -> Statement:
    true, said = ConditionStatus.TRUE, _said(mark.verdict)
    if mark.state is MarkState.OVERRULED:
        message = f"{said}; uncordoned by hand, which stands until there is a newer verdict"
        return Statement(true, "CordonOverruled", message, "Normal", "CordonOverruled")
    if mark.state is MarkState.HELD:
        message = (
            f"{said}; not cordoned, because as many nodes are as --cordon-limit allows "
            f"({options.limit_percent}% of all, and at least one)"
        )
        return Statement(true, HELD, message, "Warning", HELD)
    if dry:
        message = f"{said}; the controller runs with --cordon=report and cordons nothing"
        return Statement(true, mark.verdict.reason, message, "Warning", "CordonReported")
    return Statement(true, mark.verdict.reason, f"{said}; cordoned", "Warning", "Cordoned")


def _acquittal(node: NodeState, options: CordonOptions) -> Statement:
    false, verdict = ConditionStatus.FALSE, node.verdict
    if verdict is None or not verdict.healthy:
        message = "the object that accused this node was deleted before the node was cordoned"
        return Statement(false, "VerdictGone", message, "Normal", "VerdictGone")
    said = _said(verdict)
    if options.mode is CordonMode.REPORT:
        message = f"{said}; the controller runs with --cordon=report and lifts no cordon"
        return Statement(false, verdict.reason, message, "Normal", "CordonReported")
    others = node.unschedulable or node.taint is not None
    message = f"{said}; the cordon that others set stays" if others else f"{said}; not cordoned any more"
    return Statement(false, verdict.reason, message, "Normal", "CordonLifted")


def _said(verdict: Verdict) -> str:
    speaker = f"{verdict.kind} {verdict.namespace}/{verdict.name}"
    when = verdict.time.strftime("%Y-%m-%dT%H:%M:%SZ")
    if verdict.healthy:
        return f"{speaker} passed this node at {when}"
    if verdict.reason == VerdictReason.HARDWARE_ERROR:
        return f"{speaker} ended on this node with a hardware error at {when}"
    return f"{speaker} found this node faulty at {when}"
