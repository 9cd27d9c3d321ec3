"""Which steps compare: those that a script tells, or else those that agents counted (docs/hangs.md). Pure."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace

from crds.agent_report import AgentReport
from crds.elasticjob import ElasticJob
from crds.elasticworker import ElasticWorker
from reconcilers.observed.workers import Workers


def tells_steps(job: ElasticJob, workers: Iterable[ElasticWorker]) -> bool:
    """Whether the script is known to tell its steps, on some rank or other."""
    goodput = job.status.goodput
    known = goodput is not None and goodput.latest is not None and not goodput.latest.counted
    return known or any(_tells(worker.status.agent) for worker in workers)


def counts_steps(report: AgentReport | None) -> bool:
    """Whether an agent counts: its rounds are all of one kind."""
    return report is not None and bool(report.rounds) and report.rounds[-1].counted is True


def with_comparable_steps(job: ElasticJob, workers: Workers) -> Workers:
    """The workers, without the counts of those beside whom others tell their steps.

    A script that tells its steps on rank 0 alone goes by numbers of its own: beside them, whoever was counted
    might seem to lag behind.
    """
    telling = workers.telling_steps
    counted = {worker.metadata.uid for worker in telling if counts_steps(worker.status.agent)}
    if not counted or not tells_steps(job, telling):
        return workers
    return Workers(_without_steps(w) if w.metadata.uid in counted else w for w in workers)


def _tells(report: AgentReport | None) -> bool:
    return report is not None and bool(report.rounds) and not report.rounds[-1].counted


def _without_steps(worker: ElasticWorker) -> ElasticWorker:
    report = worker.status.agent
    assert report is not None
    progress, failure = report.progress, report.failure
    if progress is not None:  # it may have told a checkpoint
        saved = progress.checkpoint_step
        progress = None if saved is None else replace(progress, step=saved)
    if failure is not None:
        stacks = tuple(replace(stack, step=None) for stack in failure.stacks)
        failure = replace(failure, step=None, stacks=stacks)
    said = replace(report, progress=progress, rounds=(), failure=failure)
    return worker.model_copy(update={"status": worker.status.model_copy(update={"agent": said})})
