"""What people are told of a node's cordon: a condition of the Node, and an Event when it changes."""

from __future__ import annotations

from dataclasses import dataclass

from controller.events import EventType
from crds.model import ConditionStatus
from reconcilers.cordon.mark import Mark, MarkState, Verdict, VerdictReason
from reconcilers.cordon.options import CordonMode, CordonOptions
from reconcilers.cordon.policy import NodeState

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
        wanted: as `decide` wants it, which a dry run does not make true.
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
        message = "what accused this node has been deleted before it was cordoned"
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
