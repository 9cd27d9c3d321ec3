"""Condition `CheckpointsFailing`: what training processes tell does not work with their checkpoints. Pure."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from datetime import datetime

from controller.wording import counted
from crds.elasticworker import ElasticWorker
from crds.model import Condition, ConditionData, ConditionStatus
from crds.phases import RendezvousPhase
from crds.rendezvous import Rendezvous
from reconcilers.observed.conditions import condition_of, data_of, with_condition
from reconcilers.observed.workers import Workers
from reconcilers.runtime.acts import Event

CHECKPOINTS_FAILING = "CheckpointsFailing"


def with_saving(
    conditions: Sequence[Condition], workers: Workers, world: Rendezvous, now: datetime
) -> list[Condition]:
    """The conditions, with this one once something did not work.

    Its message is kept as long as the same worker has the same trouble, whatever its newest step is. It is
    taken back when that worker tells no more of it, is gone, or stands by while others make steps; while its
    Pod is replaced nothing is known.
    """
    reports = ((worker.metadata.name, worker.status.agent) for worker in workers.telling_steps)
    telling = {name: report.checkpoint_trouble for name, report in reports if report is not None}
    troubled = {name: trouble for name, trouble in telling.items() if trouble is not None}
    known = condition_of(conditions, CHECKPOINTS_FAILING)
    fails = known is not None and known.status is ConditionStatus.TRUE
    told_by = data_of(known).worker
    if not troubled and not fails:
        return list(conditions)
    if not troubled:
        who = next((worker for worker in workers if worker.metadata.name == told_by), None)
        if told_by not in telling and who is not None and not _stands_by(who, world, workers):
            return list(conditions)
        return with_condition(conditions, CHECKPOINTS_FAILING, ConditionStatus.FALSE, "Saved", "", now)
    name = told_by if told_by in troubled else next(iter(troubled))
    trouble = troubled[name]
    if known is not None and fails and known.reason == trouble.reason and told_by == name:
        return list(conditions)
    others = f"; and {counted(len(troubled) - 1, 'more worker')}" if len(troubled) > 1 else ""
    message, data = f"{name}, first: {trouble.message}{others}", ConditionData(worker=name)
    return with_condition(
        conditions, CHECKPOINTS_FAILING, ConditionStatus.TRUE, trouble.reason, message, now, data
    )


def _stands_by(worker: ElasticWorker, world: Rendezvous, workers: Workers) -> bool:
    """Whether it is in no world, and the members of the one that there is have made steps."""
    if world.phase is not RendezvousPhase.FORMED or worker.spec.index in world.members:
        return False
    told = (other.status.agent for other in workers.telling_steps)
    return any(report.rounds[-1].round == world.round for report in told if report is not None)


def events_of_saving(before: Sequence[Condition], after: Sequence[Condition]) -> Iterator[Event]:
    """One when it begins, one for each other reason, and one when it works again."""
    old, new = condition_of(before, CHECKPOINTS_FAILING), condition_of(after, CHECKPOINTS_FAILING)
    if new is None or (old is not None and (old.status, old.reason) == (new.status, new.reason)):
        return
    if new.status is ConditionStatus.TRUE:
        yield Event("Warning", CHECKPOINTS_FAILING, new.message)
    elif old is not None:
        yield Event("Normal", "CheckpointsSaved", f"checkpoints are saved again, after {old.reason}")
