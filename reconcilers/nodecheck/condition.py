"""Condition `NodesChecked` of a job, about the checks of its nodes. Pure."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import replace

from crds.elasticjob import ElasticJob
from crds.findings import MAX_EVIDENCE, WORST_FIRST
from crds.model import MAX_CONDITION_MESSAGE, Condition, ConditionData, ConditionStatus
from crds.nodecheck import NodeCheck, NodeCheckPhase, NodeCheckStatus
from crds.texts import shortened
from reconcilers.findings.finished import FinishedCheck
from reconcilers.findings.reasons import (
    CHECKING,
    FRESH,
    GONE,
    INTERRUPTED,
    NODES_CHECKED,
    NOT_YET,
    QUIET,
    REFUSED,
)
from reconcilers.look import ConditionKind, DesiredJob
from reconcilers.nodecheck.claims import WAITING_FOR_CHECK
from reconcilers.nodecheck.job_checks import JobChecks
from reconcilers.nodecheck.status import summary_of
from reconcilers.observed.conditions import NO_DATA, ConditionState, NextState, condition_of
from reconcilers.observed.slots import named
from reconcilers.runtime.acts import Event

QUOTED = 3
"""Limit of verdicts that are quoted with their evidence; all are in the NodeCheck."""


def judge(before: Condition | None, look: DesiredJob) -> NextState:
    checks = look.seen.vetting
    if not look.goes_on or not isinstance(checks, JobChecks):
        return _interrupted(before)
    refused, unvetted = look.seen.request_refused, look.standing.unvetted
    found = finding_of(look.job, checks.finished, checks.active, refused, unvetted, look.left_out)
    return before if found is None else found


def event(_: Condition | None, new: Condition) -> Event | None:
    """An Event when a check begins, ends, or cannot be created."""
    if new.reason in (FRESH, NOT_YET):
        return None
    return Event("Normal" if new.reason in QUIET else "Warning", new.reason, new.message)


KIND = ConditionKind(NODES_CHECKED, judge, judge, event)


def finding_of(
    job: ElasticJob,
    finished: Sequence[FinishedCheck] = (),
    active: NodeCheck | None = None,
    refused: str = "",
    unvetted: Collection[int] = (),
    left_out: Collection[int] = (),
) -> ConditionState | None:
    """The state of the condition; None if the job has no checks.

    Args:
        refused: why a check could not be created.
        unvetted: workers that need a check before they join a world.
        left_out: workers on slow nodes that the world excludes.
    """
    finding = _finding(job, finished, active, refused, unvetted)
    if finding is None or not left_out:
        return finding
    slow = f"; {named(left_out)} {'are' if len(left_out) > 1 else 'is'} left out of the world, being slow"
    message = shortened(finding.message, MAX_CONDITION_MESSAGE - len(slow))
    data = (finding.data or NO_DATA).model_copy(update={"count": len(left_out)})
    return replace(finding, message=f"{message}{slow}", data=data)


def _interrupted(before: Condition | None) -> NextState:
    if before is None or before.reason != CHECKING:
        return before
    message = "the job ended or was suspended before the node check had finished"
    return ConditionState(ConditionStatus.UNKNOWN, INTERRUPTED, message)


def _finding(
    job: ElasticJob,
    finished: Sequence[FinishedCheck],
    active: NodeCheck | None,
    refused: str,
    unvetted: Collection[int],
) -> ConditionState | None:
    unknown = ConditionStatus.UNKNOWN
    if active is not None:
        return ConditionState(unknown, CHECKING, _progress(active), _about(active))
    if refused:
        return ConditionState(unknown, REFUSED, f"no node check can be created; training goes on: {refused}")
    if finished:
        return _outcome(max(finished, key=lambda done: done.ended))
    if any(c.type == NODES_CHECKED and c.reason == CHECKING for c in job.status.conditions):
        return ConditionState(unknown, GONE, "the node check was deleted before it had finished")
    if not job.spec.node_check.enabled:
        return None
    if unvetted:
        return ConditionState(
            unknown, NOT_YET, f"a node check of {named(unvetted)} comes before the next world"
        )
    return ConditionState(
        ConditionStatus.TRUE, FRESH, "all nodes have passed a check within nodeCheck.freshSeconds"
    )


def _progress(check: NodeCheck) -> str:
    name, running = check.metadata.name, condition_of(check.status.conditions, "Running")
    if running is not None and running.reason == WAITING_FOR_CHECK:
        limit = f"training goes on without these nodes' tests after {check.spec.timeout_seconds} s"
        return f"node check {name} {running.message}; {limit}"
    return f"node check {name} tests {_tests(check)}"


def _tests(check: NodeCheck) -> str:
    """The workers that a check tests, in words."""
    return "all workers" if check.spec.workers is None else named(check.spec.workers)


def _outcome(done: FinishedCheck) -> ConditionState:
    name, status = done.check.metadata.name, done.check.status
    if status.phase is NodeCheckPhase.FAILED:
        failed = condition_of(status.conditions, "Failed")
        why = f": {failed.reason}: {failed.message}" if failed else ""
        message = f"node check {name} could not be carried out; training goes on{why}"
        return ConditionState(ConditionStatus.UNKNOWN, "CheckFailed", message, _about(done.check))
    summary = summary_of(done.verdicts, status.node_results, status.faulty_links, status.faulty_domains)
    sentences = [f"node check {name}: {summary.message}"]
    if len(done.verdicts) > 1:
        sentences += _evidence(status)
    if status.faulty_nodes:
        sentences.append("workers found on faulty nodes move to others")
    return replace(summary, message="; ".join(sentences), data=_about(done.check))


def _about(check: NodeCheck) -> ConditionData:
    return ConditionData(check=check.metadata.name)


def _evidence(status: NodeCheckStatus) -> list[str]:
    """Describe the evidence on a few nodes and links."""
    guilty = sorted(
        (result for result in status.node_results if not result.healthy and result.message),
        key=lambda result: (WORST_FIRST.index(result.verdict), result.node),
    )
    links = [f"{link}: {link.message[:MAX_EVIDENCE]}" for link in status.faulty_links if link.message]
    return [f"{result.node}: {result.message[:MAX_EVIDENCE]}" for result in guilty[:QUOTED]] + links[:QUOTED]
