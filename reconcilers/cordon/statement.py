"""What people and remediators are told of a node: two conditions, and an Event when they change. Pure.

`ElasticUnhealthy` is True only while the node is out of service by our cordon, so that whatever repairs nodes
by type and status acts on what we would act on ourselves. All that speaks against a node and is not acted
upon (held back, overruled, a dry run, slow, undecided) is `ElasticSuspected`.

A message says in this order what was found, what was done, why, and what to do.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from controller.events import EventType
from crds.model import ConditionStatus
from reconcilers.cordon.limits import held_back
from reconcilers.cordon.options import NOT_ENFORCED, CordonMode, CordonOptions
from reconcilers.cordon.policy import Mark, MarkState, NodeState, Verdict, VerdictReason
from reconcilers.nodecheck.actions import advice

HELD = "CordonHeld"
OVERRULED = "CordonOverruled"
REPORTED = "CordonReported"


@dataclass(frozen=True)
class Statement:
    unhealthy: ConditionStatus
    """Status of the condition `ElasticUnhealthy`."""
    suspected: ConditionStatus
    """Status of the condition `ElasticSuspected`."""
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
        options: of the controller.
        accused: whether one of the conditions is True now, so that it has to be taken back.
    """
    if wanted.mark is not None and wanted.mark.state is not MarkState.LIFTED:
        dry = options.mode is CordonMode.REPORT and not node.cordoned
        return _accusation(wanted.mark, options, dry=dry)
    if wanted.suspicion is not None and not node.cordoned:
        return _suspicion(wanted.suspicion)
    if accused or node.cordoned:
        return _acquittal(node, wanted, options)
    return None


def _accusation(mark: Mark, options: CordonOptions, *, dry: bool) -> Statement:
    verdict = mark.verdict
    if mark.state is MarkState.OVERRULED:
        done = "uncordoned by hand, which stands until there is a newer verdict"
        return _suspected(verdict, OVERRULED, done, "Normal", OVERRULED)
    if mark.state is MarkState.HELD:
        done = f"{held_back(mark.full)} ({options.limit_percent}%, and at least one)"
        return _suspected(verdict, HELD, done, "Warning", HELD)
    if dry:
        return _suspected(verdict, REPORTED, NOT_ENFORCED, "Warning", REPORTED)
    true, false = ConditionStatus.TRUE, ConditionStatus.FALSE
    return Statement(true, false, verdict.reason, _said(verdict, "cordoned"), "Warning", "Cordoned")


def _suspected(
    verdict: Verdict, reason: str, done: str, event_type: EventType, event_reason: str
) -> Statement:
    true, false = ConditionStatus.TRUE, ConditionStatus.FALSE
    return Statement(false, true, reason, _said(verdict, done), event_type, event_reason)


def _suspicion(verdict: Verdict) -> Statement:
    return _suspected(verdict, verdict.reason, "that cordons nobody", "Normal", "Suspected")


def _acquittal(found: NodeState, node: NodeState, options: CordonOptions) -> Statement:
    false, verdict = ConditionStatus.FALSE, node.verdict
    if verdict is None or not verdict.healthy:
        message = "The object that accused this node was deleted before the node was cordoned."
        return Statement(false, false, "VerdictGone", message, "Normal", "VerdictGone")
    if options.mode is CordonMode.REPORT:
        message = _said(verdict, "the controller runs with --cordon=report and lifts no cordon")
        return Statement(false, false, verdict.reason, message, "Normal", REPORTED)
    if found.mark is None:
        return Statement(false, false, verdict.reason, _said(verdict), "Normal", "SuspicionLifted")
    others = node.unschedulable or node.taint is not None
    message = _said(verdict, "the cordon that others set stays" if others else "not cordoned any more")
    return Statement(false, false, verdict.reason, message, "Normal", "CordonLifted")


FOUND: Mapping[str, str] = {
    VerdictReason.CHECK_PASSED: "passed this node at",
    VerdictReason.CHECK_FAILED: "found this node faulty at",
    VerdictReason.HARDWARE_ERROR: "ended on this node with a hardware error at",
    VerdictReason.STRAGGLER: "found this node slow at",
    VerdictReason.INCONCLUSIVE: "could not clear this node at",
}


def _said(verdict: Verdict, done: str = "") -> str:
    otherwise = "passed this node at" if verdict.healthy else "found this node faulty at"
    found = FOUND.get(verdict.reason, otherwise)
    when = verdict.time.strftime("%Y-%m-%dT%H:%M:%SZ")
    parts = [
        f"{verdict.kind} {verdict.namespace}/{verdict.name} {found} {when}{f'; {done}' if done else ''}."
    ]
    if verdict.evidence and not verdict.healthy:
        parts.append(f"Why: {verdict.evidence}.")
    if verdict.action is not None:
        parts.append(f"Do: {advice(verdict.action)}.")
    return " ".join(parts)
