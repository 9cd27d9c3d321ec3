"""The last failure of a job, and what broke a world."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime

from crds.agent_report import AgentReport
from crds.elasticjob import ElasticJob
from crds.elasticworker import WorkerExit
from crds.job_status import JobFailure
from reconcilers.observed.worker_state import REPLACED
from reconcilers.observed.workers import Workers


def last_failure(job: ElasticJob, workers: Workers) -> JobFailure | None:
    """The newest end of a Pod, unless the job already shows a newer failure."""
    newest = job.status.last_failure
    for worker in workers.exceptional:
        end = worker.status.last_exit
        counts = end is not None and end.reason != REPLACED  # what was first counts as a failure in place
        if end is not None and counts and (newest is None or end.time > newest.time):
            newest = failure_of_pod(worker.metadata.name, end)
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
    """The worker and its failure in one line."""
