"""Condition `CheckpointsFailing`: failures of checkpoints that training processes report. Pure."""

from __future__ import annotations

from controller.wording import counted
from crds.elasticworker import ElasticWorker
from crds.model import Condition, ConditionData, ConditionStatus
from crds.phases import RendezvousPhase
from crds.rendezvous import Rendezvous
from reconcilers.conditions.facts import Facts
from reconcilers.observed.conditions import NextState, State, data_of
from reconcilers.observed.workers import Workers
from reconcilers.runtime.acts import Event

CHECKPOINTS_FAILING = "CheckpointsFailing"


def judge(known: Condition | None, facts: Facts) -> NextState:
    """Judges what processes report of their checkpoints; there is no condition before something failed.

    The message is kept as long as the same worker has the same trouble, whatever its newest step is. It is
    taken back when that worker reports it no more, is gone, or stands by while others make steps; while its
    Pod is replaced nothing is known.
    """
    workers = facts.workers
    reports = ((worker.metadata.name, worker.status.agent) for worker in workers.telling_steps)
    reporting = {name: report.checkpoint_trouble for name, report in reports if report is not None}
    troubled = {name: trouble for name, trouble in reporting.items() if trouble is not None}
    fails = known is not None and known.status is ConditionStatus.TRUE
    reporter = data_of(known).worker
    if not troubled:
        if not fails:
            return known
        who = next((worker for worker in workers if worker.metadata.name == reporter), None)
        if reporter not in reporting and who is not None and not _stands_by(who, facts.world, workers):
            return known
        return State(ConditionStatus.FALSE, "Saved")
    name = reporter if reporter in troubled else next(iter(troubled))
    trouble = troubled[name]
    if known is not None and fails and known.reason == trouble.reason and reporter == name:
        return known
    others = f"; and {counted(len(troubled) - 1, 'more worker')}" if len(troubled) > 1 else ""
    message = f"{name}, first: {trouble.message}{others}"
    return State(ConditionStatus.TRUE, trouble.reason, message, ConditionData(worker=name))


def event(old: Condition | None, new: Condition) -> Event | None:
    """An Event when it begins, for each other reason, and when checkpoints are saved again."""
    if old is not None and (old.status, old.reason) == (new.status, new.reason):
        return None
    if new.status is ConditionStatus.TRUE:
        return Event("Warning", CHECKPOINTS_FAILING, new.message)
    if old is None:
        return None
    return Event("Normal", "CheckpointsSaved", f"checkpoints are saved again, after {old.reason}")


def _stands_by(worker: ElasticWorker, world: Rendezvous, workers: Workers) -> bool:
    """Whether it is in no world, and the members of the one that there is have made steps."""
    if world.phase is not RendezvousPhase.FORMED or worker.spec.index in world.members:
        return False
    reports = (other.status.agent for other in workers.telling_steps)
    return any(report.rounds[-1].round == world.round for report in reports if report is not None)
