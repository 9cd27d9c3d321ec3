"""The last failure of a job, its counts of failures, and the breaks of its world. Pure."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime

from crds import names
from crds.agent_report import AgentReport, steps_are_relative
from crds.elasticjob import ElasticJob
from crds.elasticworker import ElasticWorker, ExitClass, WorkerExit
from crds.job_status import Departed, ElasticJobStatus, JobFailure
from reconcilers.observed.worker_state import REPLACED
from reconcilers.observed.workers import Workers

RESTARTED = " restarted"
"""Word in the message of a worker's end, after the name of its node."""


def last_failure(job: ElasticJob, workers: Workers, *, with_planned: bool = False) -> JobFailure | None:
    """Return the newest end of a Pod, unless the job already shows a newer failure with another cause.

    A member's end may be seen before the failure of its peers, and be written after it.

    Args:
        with_planned: also count Pods that left in good order.
    """
    newest, members = job.status.last_failure, {}
    if newest is not None and newest.round is not None and newest.exit_class == ExitClass.UNKNOWN:
        members = job.status.world.incarnation_by_index()
    for worker in workers.exceptional:
        end = worker.status.last_exit
        if end is None or end.reason == REPLACED:  # its failure was counted in place
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
    """Whether it had to leave, so that no replacement is awaited."""
    trains_on: bool = False
    """Whether it trains in its world until the others go on without it."""
    stops_in_good_order: bool = False
    """Whether its processes have time to save, or have saved and left by vote; its peers should, too."""
    took_part: bool = False
    """Whether it left by vote because another had to."""


@dataclass(frozen=True)
class Hold:
    """A wait before a world replaces a broken one."""

    until: datetime
    reason: str
    """End of the sentence `the next world waits …`."""


@dataclass(frozen=True)
class Blame:
    """The first failure of a round whose world broke."""

    round: int
    line: str
    """The worker and its failure in one line: `worker 1 was lost: the Pod was deleted`."""
    instead_of: str = ""
    """The worker that was blamed before, if the first failure is a loss that was noticed late."""


def reached(job: ElasticJob, workers: Sequence[ElasticWorker]) -> int | None:
    """Return the highest step ever reported; None without one."""
    goodput, budget = job.status.goodput, job.status.failure_budget
    steps = [step for worker in workers for step in steps_of(worker.status.agent)]
    return _highest([*steps, goodput.last_step if goodput else None, budget.step if budget else None])


def reached_before(job: ElasticJob, workers: Sequence[ElasticWorker]) -> int | None:
    """Return the highest step up to the job's last failure, including later reports of these rounds."""
    last, budget = job.status.last_failure, job.status.failure_budget
    recorded = budget.step if budget else None
    if last is None or last.round is None:
        return recorded
    steps = [step for worker in workers for step in steps_through(worker.status.agent, last.round)]
    goodput = job.status.goodput
    counted = goodput.last_step if goodput and goodput.round <= last.round else None
    return _highest([*steps, counted, recorded])


def steps_of(report: AgentReport | None) -> list[int | None]:
    """Return all steps in one agent's report."""
    if report is None:
        return []
    steps: list[int | None] = [round_.last_step for round_ in report.rounds]
    steps.append(report.progress.step if report.progress else None)
    steps.append(report.failure.step if report.failure else None)
    return steps


def highest_step(report: AgentReport | None) -> int | None:
    return _highest(steps_of(report))


def steps_through(report: AgentReport | None, round_: int) -> list[int | None]:
    """Return the steps of this round and earlier ones in the report."""
    if report is None:
        return []
    steps: list[int | None] = [each.last_step for each in report.rounds if each.round <= round_]
    failure = report.failure
    if failure is not None and failure.round <= round_:
        steps.append(failure.step)
    return steps


def began_at_unknown_step(reports: Iterable[AgentReport | None], round_: int | None) -> bool:
    figures = [each for report in reports if report for each in report.rounds if each.round == round_]
    return steps_are_relative([(each.counted, each.start_unknown) for each in figures])


def _highest(steps: Iterable[int | None]) -> int | None:
    return max((step for step in steps if step is not None), default=None)


Counts = Mapping[str, int]


def failures_of(
    before: ElasticJobStatus, restarts: Counts, present: Iterable[Counts], departed: Departed | None
) -> tuple[dict[str, int], Departed | None]:
    """Return all failures by exit class, and `departed` with those of workers gone since the last reconcile.

    Args:
        before: the stored status.
        restarts: failures in place, including new ones.
        present: failures of each worker's Pods, or of each replica group.
        departed: counts of deleted workers, including those that are deleted now.
    """
    so_far = departed or Departed()
    counted = Counter(so_far.failures)
    for each in present:
        counted.update(each)
    gone = Counter(before.failures) - Counter(before.restarts) - counted  # keeps what is positive
    if gone:
        departed = so_far.model_copy(update={"failures": dict(Counter(so_far.failures) + gone)})
    return dict(Counter(restarts) + counted + gone), departed


def with_departed(job: ElasticJob, surplus: Collection[ElasticWorker]) -> ElasticJob:
    """Return the job with the counts of workers that are deleted (`status.departed`).

    The status is written before the deletion, and keeps the slot as counted while its worker exists, so a
    controller that dies in between counts nothing twice.

    Args:
        surplus: the workers to delete that still exist.
    """
    departed = job.status.departed
    failed = [worker for worker in surplus if worker.status.restarts]
    if departed is None and not failed:
        return job
    departed = departed or Departed()
    counted = {(type_, index) for type_, slots in departed.leaving.items() for index in slots}
    restarts, failures = Counter(departed.restarts), Counter(departed.failures)
    leaving = dict[str, list[int]]()
    for worker in failed:
        leaving.setdefault(worker.spec.type, []).append(worker.spec.index)
        if (worker.spec.type, worker.spec.index) not in counted:
            restarts.update(worker.status.restarts)
            failures.update(worker.status.failures)
    slots = {type_: sorted(indices) for type_, indices in leaving.items()}
    update = {"restarts": dict(restarts), "failures": dict(failures), "leaving": slots}
    return job.having(departed=departed.model_copy(update=update))
