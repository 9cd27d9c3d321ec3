"""The nodes of a check and their workers: who is there, who is out and why, and what each has answered.

Everything is read from the ElasticWorkers, so a controller that starts in the middle sees the same. Pure.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from crds.elasticworker import (
    AgentCheck,
    AgentReport,
    AgentState,
    ElasticWorker,
    ExitClass,
    PairOutcome,
    ProbeOutcome,
    WorkerPhase,
)
from crds.model import ConditionStatus
from crds.nodecheck import NodeCheck
from reconcilers.pod.worker_status import SCHEDULED, current_report

MAX_MESSAGE = 500


@dataclass(frozen=True)
class Participant:
    """A node of the check, and what its worker has to say."""

    node: str
    incarnation: int
    worker: ElasticWorker | None
    reused: bool = False
    check_uid: str = ""

    @property
    def report(self) -> AgentReport | None:
        """Of the incarnation that takes part. It stays readable when its Pod has ended."""
        said = None if self.worker is None else self.worker.status.agent
        return said if said is not None and said.incarnation == self.incarnation else None

    @property
    def answers(self) -> AgentCheck | None:
        """To this check."""
        said = None if self.report is None else self.report.check
        return said if said is not None and said.uid == self.check_uid else None

    @property
    def local(self) -> Sequence[ProbeOutcome]:
        return self.answers.local if self.answers else ()

    def pair(self, round_: int) -> PairOutcome | None:
        pairs = self.answers.pairs if self.answers else ()
        return next((pair for pair in pairs if pair.round == round_), None)

    @property
    def is_ready(self) -> bool:
        """Whether its agent is there."""
        return (
            self.report is not None
            and self.report.state is not AgentState.STOPPED
            and self.worker is not None
            and current_report(self.worker)
            and self.worker.status.phase not in (WorkerPhase.SUCCEEDED, WorkerPhase.FAILED)
        )


@dataclass(frozen=True)
class Out:
    """Why a node can give no answer any more."""

    message: str
    lost: bool = False
    """The node itself is gone: a fault of its. Otherwise it withdraws."""


def participants_of(check: NodeCheck, workers: Iterable[ElasticWorker]) -> tuple[Participant, ...]:
    """In rank order."""
    status = check.status
    by_index = {worker.spec.index: worker for worker in workers}
    reused = set(status.reused)
    members = zip(status.nodes, status.workers, status.incarnations, strict=True)
    return tuple(
        Participant(node, incarnation, by_index.get(index), node in reused, check.metadata.uid)
        for node, index, incarnation in members
    )


def out_of(participant: Participant) -> Out | None:
    """Whether the node's worker has ended or was replaced, so that no answer will come."""
    worker = participant.worker
    if worker is None or worker.metadata.deletion_timestamp is not None:
        return Out("its worker was deleted")
    status, end = worker.status, worker.status.last_exit
    replaced = worker.spec.incarnation != participant.incarnation
    ended = status.observed_incarnation == participant.incarnation and status.phase is WorkerPhase.FAILED
    if (replaced or ended) and end is not None and end.incarnation == participant.incarnation:
        lost = end.exit_class is ExitClass.NODE_LOST
        return Out(f"its Pod ended ({end.exit_class}): {end.message or end.reason}"[:MAX_MESSAGE], lost)
    if replaced:
        return Out("its Pod was replaced")
    if ended or status.phase is WorkerPhase.SUCCEEDED:
        return Out("its Pod ended")
    if participant.report is not None and participant.report.state is AgentState.STOPPED:
        return Out("its agent has stopped")
    return None


def departure_of(participant: Participant) -> Out | None:
    """The same of a node whose agent was there: a Pod that is not known is gone, not yet to come."""
    out, worker = out_of(participant), participant.worker
    if out is None and worker is not None and worker.status.pod_uid is None:
        return Out("its Pod is gone")
    return out


def absence_of(participant: Participant) -> Out:
    """Why a node's agent has not come within the time that it was given."""
    known = out_of(participant)
    if known is not None or participant.worker is None:
        return known or Out("its worker was deleted")
    status = participant.worker.status
    for condition in status.conditions:
        if condition.type == SCHEDULED and condition.status is ConditionStatus.FALSE:
            return Out(f"its Pod could not be placed: {condition.message}"[:MAX_MESSAGE])
    if status.pod_uid is None:
        return Out("no Pod was made for it in time")
    if not status.node_name:
        return Out("its Pod was not placed in time")
    return Out(f"its Pod never reported: {status.message}"[:MAX_MESSAGE].rstrip(": "), lost=True)
