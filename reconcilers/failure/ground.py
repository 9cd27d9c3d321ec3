"""How far training ever got, as its agents tell: what decides whether a failure came after new ground."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from crds.agent_report import AgentReport
from crds.elasticjob import ElasticJob
from crds.elasticworker import ElasticWorker


def reached(job: ElasticJob, workers: Sequence[ElasticWorker]) -> int | None:
    """The highest step ever reported; None if none was."""
    goodput, budget = job.status.goodput, job.status.failure_budget
    steps = [step for worker in workers for step in steps_of(worker.status.agent)]
    return _highest([*steps, goodput.last_step if goodput else None, budget.step if budget else None])


def reached_before(job: ElasticJob, workers: Sequence[ElasticWorker]) -> int | None:
    """The same at the job's last failure, with what was told of those rounds only later."""
    last, budget = job.status.last_failure, job.status.failure_budget
    known = budget.step if budget else None
    if last is None or last.round is None:
        return known
    steps = [step for worker in workers for step in steps_through(worker.status.agent, last.round)]
    goodput = job.status.goodput
    counted = goodput.last_step if goodput and goodput.round <= last.round else None
    return _highest([*steps, counted, known])


def steps_of(report: AgentReport | None) -> list[int | None]:
    """All steps in one agent's report."""
    if report is None:
        return []
    steps: list[int | None] = [round_.last_step for round_ in report.rounds]
    steps.append(report.progress.step if report.progress else None)
    steps.append(report.failure.step if report.failure else None)
    return steps


def highest_step(report: AgentReport | None) -> int | None:
    return _highest(steps_of(report))


def steps_through(report: AgentReport | None, round_: int) -> list[int | None]:
    """The steps of this round and earlier ones in the report."""
    if report is None:
        return []
    steps: list[int | None] = [each.last_step for each in report.rounds if each.round <= round_]
    failure = report.failure
    if failure is not None and failure.round <= round_:
        steps.append(failure.step)
    return steps


def _highest(steps: Iterable[int | None]) -> int | None:
    return max((step for step in steps if step is not None), default=None)
