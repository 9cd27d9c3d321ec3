"""The last failure of a job, how often it has failed in its life, and what broke a world. Pure."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime

from crds import names
from crds.agent_report import AgentReport
from crds.elasticjob import ElasticJob
from crds.elasticworker import ElasticWorker, ExitClass, WorkerExit
from crds.job_status import Departed, ElasticJobStatus, JobFailure
from reconcilers.observed.worker_state import REPLACED
from reconcilers.observed.workers import Workers

RESTARTED = " restarted"
"""What the message of a worker's end says of its node, after the node's name."""


def last_failure(job: ElasticJob, workers: Workers, *, with_planned: bool = False) -> JobFailure | None:
    """The newest end of a Pod, unless the job already shows a newer failure that has another cause.

    A member's end may be seen before the failure of its peers, and be written after it.

    Args:
        with_planned: count a Pod that was taken away in good order.
    """
    newest, members = job.status.last_failure, {}
    if newest is not None and newest.round is not None and newest.exit_class == ExitClass.UNKNOWN:
        members = job.status.world.incarnation_by_index()
    for worker in workers.exceptional:
        end = worker.status.last_exit
        if end is None or end.reason == REPLACED:  # what was first counts as a failure in place
            continue
        is_members = worker.spec.type == names.WORKER and members.get(worker.spec.index) == end.incarnation
        if (with_planned or not end.planned) and (newest is None or end.time > newest.time or is_members):
            newest, members = failure_of_pod(worker.metadata.name, end), {}
    return newest


def failure_of_pod(worker: str, end: WorkerExit) -> JobFailure:
    return JobFailure(
        worker=worker,
        rank=end.rank,
        exit_class=end.exit_class.value,
        exit_code=end.exit_code,
        message=end.message,
        time=end.time,
    )


@dataclass(frozen=True)
class Break:
    """A member that is no longer in the world it was in."""

    index: int
    reason: str
    report: AgentReport | None = None
    """Set if the member's own training processes failed, in place."""
    departed: bool = False
    """It was to leave: there is nobody to wait for."""
    trains_on: bool = False
    """It is in its world as it should be until the others go on without it."""
    stops_in_good_order: bool = False
    """Its processes have the time to save, or have saved and left by vote; and so should its peers'."""
    took_part: bool = False
    """It left by vote because another had to."""


@dataclass(frozen=True)
class Hold:
    """A wait before a world replaces a broken one."""

    until: datetime
    reason: str
    """What it waits for: `the next world waits …`."""


@dataclass(frozen=True)
class Blame:
    """The first failure of a round whose world broke."""

    round: int
    line: str
    """The worker and its failure in one line: `worker 1 was lost: the Pod was deleted`."""
    instead_of: str = ""
    """The worker that was blamed before, if the first failure is a loss that was noticed late."""


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


def steps_are_relative(reports: Iterable[AgentReport | None], round_: int | None) -> bool:
    """Whether the round made steps whose numbers say nothing, as the one that they began with is unknown."""
    figures = [each for report in reports if report for each in report.rounds if each.round == round_]
    return any(each.start_unknown for each in figures) and all(each.counted for each in figures)


def _highest(steps: Iterable[int | None]) -> int | None:
    return max((step for step in steps if step is not None), default=None)


Counts = Mapping[str, int]


def failures_of(
    before: ElasticJobStatus, restarts: Counts, present: Iterable[Counts], departed: Departed | None
) -> tuple[dict[str, int], Departed | None]:
    """Return all failures by exit class, and `departed` with those of whoever is gone since the last look.

    Args:
        before: the status that is stored.
        restarts: failures in place, with those of this look.
        present: failures of each worker's Pods, or of each replica group.
        departed: the counts of workers that are deleted, with those of this look.
    """
    known = departed or Departed()
    counted = Counter(known.failures)
    for each in present:
        counted.update(each)
    gone = Counter(before.failures) - Counter(before.restarts) - counted  # keeps what is positive
    if gone:
        departed = known.model_copy(update={"failures": dict(Counter(known.failures) + gone)})
    return dict(Counter(restarts) + counted + gone), departed


def with_departed(job: ElasticJob, surplus: Collection[ElasticWorker]) -> ElasticJob:
    """The job with the counts of workers that are deleted (`status.departed`).

    They are taken over with the write that comes before the deletion, and the slot is remembered as counted
    for as long as its worker is there: so a controller that dies in between counts nothing twice.

    Args:
        surplus: the workers that are deleted, as long as they are there.
    """
    known = job.status.departed
    failed = [worker for worker in surplus if worker.status.restarts]
    if known is None and not failed:
        return job
    known = known or Departed()
    counted = {(type_, index) for type_, slots in known.leaving.items() for index in slots}
    restarts, failures = Counter(known.restarts), Counter(known.failures)
    leaving = dict[str, list[int]]()
    for worker in failed:
        leaving.setdefault(worker.spec.type, []).append(worker.spec.index)
        if (worker.spec.type, worker.spec.index) not in counted:
            restarts.update(worker.status.restarts)
            failures.update(worker.status.failures)
    slots = {type_: sorted(indices) for type_, indices in leaving.items()}
    update = {"restarts": dict(restarts), "failures": dict(failures), "leaving": slots}
    return job.having(departed=known.model_copy(update=update))
