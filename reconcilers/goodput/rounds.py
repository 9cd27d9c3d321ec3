"""What a job trained in each round, and when, by what its members told (docs/metrics.md). Pure.

Reports of earlier incarnations and Pods count too, as long as they are there: what they say has happened.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace
from datetime import datetime, timedelta

from crds import names
from crds.agent_report import AgentReport, AgentState, RoundProgress
from crds.elasticjob import ElasticJob
from crds.elasticworker import ElasticWorker
from crds.rendezvous import Rendezvous
from reconcilers.observed.worker_state import current_report
from reconcilers.observed.workers import Workers


def reported_rounds(workers: Sequence[ElasticWorker], since: int = 0) -> list[RoundProgress]:
    """Returns by round, from `since` on, the figures that are furthest; of equals, the lowest worker's."""
    best: dict[int, RoundProgress] = {}
    for report in _reports(workers):
        for told in reversed(report.rounds):
            if told.round < since:
                break
            known = best.get(told.round)
            if known is None or told.last_step > known.last_step:
                best[told.round] = told
    return [best[round_] for round_ in sorted(best)]


def first_step_at(round_: int, workers: Sequence[ElasticWorker]) -> datetime | None:
    """When the round's first step was told, by the agents' clocks; None if that is not known."""
    times = []
    for report in _reports(workers):
        told = next((told for told in report.rounds if told.round == round_), None)
        progress = report.progress
        if told is not None and progress is not None and progress.step == told.last_step:
            times.append(progress.time - timedelta(seconds=told.stepping_seconds))
    return min(times, default=None)


def last_step_at(round_: int, workers: Sequence[ElasticWorker]) -> datetime | None:
    """When the last step that was told in the round was told; None if none was."""
    return max(
        (
            report.progress.time
            for report in _reports(workers)
            if report.progress is not None and any(told.round == round_ for told in report.rounds[-1:])
        ),
        default=None,
    )


def all_run(world: Rendezvous, workers: Sequence[ElasticWorker]) -> bool:
    """Whether all members report that the processes of the world's round run, or have ended well."""
    running = {
        worker.spec.index
        for worker in workers
        if worker.spec.type == names.WORKER and _runs(worker, world.round)
    }
    return running >= set(world.members)


def _runs(worker: ElasticWorker, round_: int) -> bool:
    report = current_report(worker)
    return (
        report is not None
        and report.observed_round == round_
        and report.state in (AgentState.RUNNING, AgentState.SUCCEEDED)
    )


def _reports(workers: Sequence[ElasticWorker]) -> list[AgentReport]:
    training = [worker for worker in workers if worker.spec.type == names.WORKER]
    training.sort(key=lambda worker: worker.spec.index)
    return [worker.status.agent for worker in training if worker.status.agent is not None]


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
