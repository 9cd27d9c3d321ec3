"""What a person is told of a job's node checks: its condition `NodesChecked`, in a sentence. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from crds.elasticjob import ElasticJob
from crds.model import Condition, ConditionStatus
from crds.nodecheck import NodeCheck, NodeCheckPhase, NodeCheckStatus, NodeVerdict
from reconcilers.check.finished import FinishedCheck
from reconcilers.check.job_check import named, tests
from reconcilers.check.job_verdicts import MAX_EVIDENCE
from reconcilers.check.summary import summary_of

NODES_CHECKED = "NodesChecked"
CHECKING, REFUSED, GONE, INTERRUPTED = "Checking", "CheckRefused", "CheckGone", "CheckInterrupted"
FRESH, NOT_YET = "Fresh", "NotYetChecked"
QUIET = frozenset({CHECKING, INTERRUPTED, FRESH, NOT_YET, "AllHealthy"})
"""Reasons that are no cause for worry."""
WORST_FIRST = (NodeVerdict.FAULTY, NodeVerdict.STRAGGLER, NodeVerdict.INCONCLUSIVE)
QUOTED = 3
"""Verdicts whose evidence is shown; all are in the NodeCheck."""
MAX_MESSAGE = 4_096


@dataclass(frozen=True)
class Finding:
    """The condition to be."""

    status: ConditionStatus
    reason: str
    message: str

    @property
    def of_a_check(self) -> bool:
        """Whether a check of the job began, ended, or could not be."""
        return self.reason not in (FRESH, NOT_YET)

    def differs_from(self, conditions: Sequence[Condition]) -> bool:
        known = {(c.status, c.reason, c.message) for c in conditions if c.type == NODES_CHECKED}
        return (self.status, self.reason, self.message) not in known


@dataclass(frozen=True)
class CheckState:
    """How the job's checks are, by now."""

    finished: tuple[FinishedCheck, ...] = ()
    active: NodeCheck | None = None
    refused: str = ""
    """Why the check that was wanted could not be made."""
    unchecked: frozenset[int] = frozenset()
    """Workers that no world is formed with before a check."""
    left_out: frozenset[int] = frozenset()


def finding_of(job: ElasticJob, state: CheckState) -> Finding | None:
    """None if the job has nothing to do with checks."""
    finding = _finding(job, state)
    if finding is None or not state.left_out:
        return finding
    are = "are" if len(state.left_out) > 1 else "is"
    message = f"{finding.message}; {named(state.left_out)} {are} left out of the world, being slow"
    return Finding(finding.status, finding.reason, message)


def interrupted(conditions: Sequence[Condition]) -> Finding | None:
    """Of a job that ends, or is suspended, during a check."""
    if not any(c.type == NODES_CHECKED and c.reason == CHECKING for c in conditions):
        return None
    message = "the job ended or was suspended before the node check had finished"
    return Finding(ConditionStatus.UNKNOWN, INTERRUPTED, message)


def _finding(job: ElasticJob, state: CheckState) -> Finding | None:
    unknown = ConditionStatus.UNKNOWN
    if state.active is not None:
        message = f"node check {state.active.metadata.name} tests {tests(state.active)}"
        return Finding(unknown, CHECKING, message)
    if state.refused:
        return Finding(unknown, REFUSED, f"no node check can be made, and training goes on: {state.refused}")
    if state.finished:
        return _outcome(max(state.finished, key=lambda done: done.ended))
    if any(c.type == NODES_CHECKED and c.reason == CHECKING for c in job.status.conditions):
        return Finding(unknown, GONE, "the node check was deleted before it had finished")
    if not job.spec.node_check.enabled:
        return None
    if state.unchecked:
        return Finding(
            unknown, NOT_YET, f"a node check of {named(state.unchecked)} comes before the next world"
        )
    return Finding(ConditionStatus.TRUE, FRESH, "all nodes passed a check within nodeCheck.freshSeconds")


def _outcome(done: FinishedCheck) -> Finding:
    name, status = done.check.metadata.name, done.check.status
    if status.phase is NodeCheckPhase.FAILED:
        failed = next((c for c in status.conditions if c.type == "Failed"), None)
        why = f": {failed.reason}: {failed.message}" if failed else ""
        message = f"node check {name} could not be carried out, and training goes on{why}"
        return Finding(ConditionStatus.UNKNOWN, "CheckFailed", message[:MAX_MESSAGE])
    summary = summary_of(done.verdicts, status.node_results, status.faulty_links, status.faulty_domains)
    sentences = [f"node check {name}: {summary.message}"]
    if len(done.verdicts) > 1:
        sentences += _evidence(status)
    if status.faulty_nodes:
        sentences.append("workers found on faulty nodes move to others")
    return Finding(summary.healthy, summary.reason, "; ".join(sentences)[:MAX_MESSAGE])


def _evidence(status: NodeCheckStatus) -> list[str]:
    """Of a few nodes and links."""
    guilty = sorted(
        (result for result in status.node_results if result.verdict in WORST_FIRST and result.message),
        key=lambda result: (WORST_FIRST.index(result.verdict), result.node),
    )
    links = [
        f"{link.a}–{link.b}: {link.message[:MAX_EVIDENCE]}" for link in status.faulty_links if link.message
    ]
    return [f"{result.node}: {result.message[:MAX_EVIDENCE]}" for result in guilty[:QUOTED]] + links[:QUOTED]
