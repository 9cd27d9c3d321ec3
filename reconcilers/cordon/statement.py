"""The two conditions of a node, and an Event when they change, for people and remediators. Pure.

`ElasticUnhealthy` is True only while the node is out of service by our cordon, so that remediators act when
we do. Findings that are not acted upon (held back, overruled, a dry run, slow, undecided) are
`ElasticSuspected`. A message has, in this order, the finding, our action, the reason, and what to do.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from controller.events import EventType
from crds.actions import Action
from crds.cordon import CHECK_FAILED, CHECK_PASSED, HELD_BACK, NOT_ENFORCED, reason_of
from crds.findings import Cause, Finding, Verdict
from crds.model import ConditionStatus
from reconcilers.cordon.policy import NodeCordon
from reconcilers.findings.actions import advice
from reconcilers.observed.options import CordonMode, CordonOptions

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
    node: NodeCordon, wanted: NodeCordon, options: CordonOptions, *, accused: bool
) -> Statement | None:
    """The conditions and Event of a node; None to leave its conditions as they are.

    Args:
        wanted: the desired state by `decide_cordon`, which a dry run does not write.
        accused: whether one of the conditions is True now, so that it may have to become False.
    """
    stated = wanted.stated
    if stated is not None and (wanted.cordoned or wanted.is_accused):
        return _accusation(node, wanted, stated, options)
    if stated is not None and wanted.suspicion is not None and not node.cordoned:
        done = "the node is not cordoned for this"
        return _suspected(stated, reason_of(stated), done, "Normal", "Suspected")
    if accused or node.cordoned:
        return _acquittal(node, wanted.finding, options)
    return None


def _accusation(node: NodeCordon, wanted: NodeCordon, stated: Finding, options: CordonOptions) -> Statement:
    if wanted.switch is not None:
        why = "; ".join(filter(None, (str(wanted.switch), stated.message)))
        stated = stated.model_copy(update={"message": why, "action": Action.LOOK_AT_DOMAIN})
    if wanted.is_overruled:
        done = "the taint was removed by hand, which stands until there is a newer verdict"
        return _suspected(stated, OVERRULED, done, "Normal", OVERRULED)
    if not wanted.cordoned:
        done = f"{HELD_BACK} ({options.limit_percent}%, and at least one)"
        return _suspected(stated, HELD, done, "Warning", HELD)
    if options.mode is CordonMode.REPORT and not node.cordoned:
        return _suspected(stated, REPORTED, NOT_ENFORCED, "Warning", REPORTED)
    true, false = ConditionStatus.TRUE, ConditionStatus.FALSE
    return Statement(true, false, reason_of(stated), _sentence(stated, "cordoned"), "Warning", "Cordoned")


def _suspected(
    finding: Finding, reason: str, done: str, event_type: EventType, event_reason: str
) -> Statement:
    true, false = ConditionStatus.TRUE, ConditionStatus.FALSE
    return Statement(false, true, reason, _sentence(finding, done), event_type, event_reason)


def _acquittal(before: NodeCordon, finding: Finding | None, options: CordonOptions) -> Statement:
    false = ConditionStatus.FALSE
    if finding is None:
        message = "The object that accused this node was deleted before the node was cordoned."
        return Statement(false, false, "VerdictGone", message, "Normal", "VerdictGone")
    if options.mode is CordonMode.REPORT:
        message = _sentence(finding, "the controller runs with --cordon=report and lifts no cordon")
        return Statement(false, false, reason_of(finding), message, "Normal", REPORTED)
    if not before.cordoned:
        return Statement(false, false, reason_of(finding), _sentence(finding), "Normal", "SuspicionLifted")
    message = _sentence(finding, "not cordoned any more")
    return Statement(false, false, reason_of(finding), message, "Normal", "CordonLifted")


FOUND: Mapping[str, str] = {
    CHECK_PASSED: "passed this node at",
    CHECK_FAILED: "found this node faulty at",
    Cause.HARDWARE_ERROR: "ended on this node with a hardware error at",
    Verdict.STRAGGLER: "found this node slow at",
    Verdict.INCONCLUSIVE: "could not clear this node at",
}


def _sentence(finding: Finding, done: str = "") -> str:
    when = finding.time.strftime("%Y-%m-%dT%H:%M:%SZ")
    done = f"; {done}" if done else ""
    parts = [f"{finding.kind} {finding.source} {FOUND[reason_of(finding)]} {when}{done}."]
    if finding.message and not finding.healthy:
        parts.append(f"Why: {finding.message}.")
    if finding.action is not None:
        parts.append(f"Do: {advice(finding.action)}.")
    return " ".join(parts)
