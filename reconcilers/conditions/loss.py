"""Condition `LossFinite`: a training process reported a loss of NaN or infinity (`dlr.report`). Pure."""

from __future__ import annotations

from collections.abc import Sequence

from crds.elasticjob import ElasticJob
from crds.elasticworker import ElasticWorker
from crds.model import Condition, ConditionData, ConditionStatus
from crds.ranges import as_ranges
from crds.rendezvous import Rendezvous
from reconcilers.conditions.facts import Facts
from reconcilers.failure.incidents import ranks_of
from reconcilers.observed.conditions import NextState, State, data_of

LOSS_FINITE = "LossFinite"
NON_FINITE = "NonFinite"


def judge(known: Condition | None, facts: Facts) -> NextState:
    """Judges the losses of the newest round with steps; there is no condition before a loss was no number."""
    job, workers = facts.job, facts.workers  # whose world is the published one, of which the ranks are
    reports = [(w, w.status.agent.rounds[-1]) for w in workers.telling_steps if w.status.agent]
    newest = max((figures.round for _, figures in reports), default=0)
    found = [
        (figures.non_finite_step, worker.spec.index, worker)
        for worker, figures in reports
        if figures.round == newest and figures.non_finite_step is not None
    ]
    before = data_of(known)
    if found:
        step, _, worker = min(found, key=lambda each: each[:2])
        if before.round == newest and before.step is not None and before.step <= step:
            return known
        message = (
            f"NaN or infinite loss at step {step} of round {newest}, the first, in "
            f"{worker.metadata.name}{_rank(job, workers, worker, newest)}; training goes on"
        )
        data = ConditionData(worker=worker.metadata.name, round=newest, step=step)
        return State(ConditionStatus.FALSE, NON_FINITE, message, data)
    if known is not None and newest > (before.round or 0):
        return State(ConditionStatus.TRUE, "Finite")
    return known


def _rank(job: ElasticJob, workers: Sequence[ElasticWorker], worker: ElasticWorker, round_: int) -> str:
    world = job.status.rendezvous or Rendezvous()
    if world.round != round_ or worker.spec.index not in world.members:
        return ""
    ranks = ranks_of(workers, world.members)[worker.spec.index]
    return f" rank {ranks.start}" if len(ranks) == 1 else f" (one of the ranks {as_ranges(list(ranks))})"
