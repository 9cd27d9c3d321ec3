"""Condition `LossFinite`: a training process told a loss of NaN or infinity (`dlr.report`). Pure."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from datetime import datetime

from crds.elasticjob import ElasticJob
from crds.elasticworker import ElasticWorker
from crds.model import Condition, ConditionData, ConditionStatus
from crds.ranges import as_ranges
from crds.rendezvous import Rendezvous
from reconcilers.failure.incidents import ranks_of
from reconcilers.observed.conditions import condition_of, data_of, is_same, with_condition
from reconcilers.observed.workers import Workers
from reconcilers.runtime.acts import Event

LOSS_FINITE = "LossFinite"
NON_FINITE = "NonFinite"


def with_loss(
    conditions: Sequence[Condition], job: ElasticJob, workers: Workers, now: datetime
) -> list[Condition]:
    """The conditions, with this one once a loss was no number, in the newest round of which steps are known.

    Args:
        job: as it is published: its world says which rank a worker has.
    """
    told = [(w, w.status.agent.rounds[-1]) for w in workers.telling_steps if w.status.agent]
    newest = max((figures.round for _, figures in told), default=0)
    found = [
        (figures.non_finite_step, worker.spec.index, worker)
        for worker, figures in told
        if figures.round == newest and figures.non_finite_step is not None
    ]
    known = condition_of(conditions, LOSS_FINITE)
    if found:
        step, _, worker = min(found, key=lambda each: each[:2])
        before = data_of(known)
        if before.round == newest and before.step is not None and before.step <= step:
            return list(conditions)
        message = (
            f"NaN or infinite loss at step {step} of round {newest}, the first, in "
            f"{worker.metadata.name}{_rank(job, workers, worker, newest)}; training goes on"
        )
        data = ConditionData(worker=worker.metadata.name, round=newest, step=step)
        return with_condition(conditions, LOSS_FINITE, ConditionStatus.FALSE, NON_FINITE, message, now, data)
    if known is not None and newest > (data_of(known).round or 0):
        return with_condition(conditions, LOSS_FINITE, ConditionStatus.TRUE, "Finite", "", now)
    return list(conditions)


def events_of_loss(before: Sequence[Condition], after: Sequence[Condition]) -> Iterator[Event]:
    old, new = condition_of(before, LOSS_FINITE), condition_of(after, LOSS_FINITE)
    if new is not None and new.reason == NON_FINITE and not is_same(old, new):
        yield Event("Warning", NON_FINITE, new.message)


def _rank(job: ElasticJob, workers: Sequence[ElasticWorker], worker: ElasticWorker, round_: int) -> str:
    world = job.status.rendezvous or Rendezvous()
    if world.round != round_ or worker.spec.index not in world.members:
        return ""
    ranks = ranks_of(workers, world.members)[worker.spec.index]
    return f" rank {ranks.start}" if len(ranks) == 1 else f" (one of the ranks {as_ranges(list(ranks))})"
