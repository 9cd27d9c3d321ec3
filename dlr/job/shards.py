"""How far a job's shard sets are, how fast they go, and when they will be over; pure functions."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from crds.intervals import common, count, from_text, minus
from crds.leases import leases_from_text
from dlr.job.report import current_report
from dlr.job.wording import duration, parse_time, significant

JSON = dict[str, Any]

LEAST_SECONDS = 1.0
"""Of what took less, nothing is said of its rate."""


@dataclass(frozen=True)
class SetProgress:
    name: str
    epoch: int
    size: int
    done: int
    """Elements done, with the part of open leases that workers have reported."""
    leased: int
    """And not done yet."""
    waiting: int
    failed: int
    per_second: float | None
    """Elements a second since the set was begun, up to its end or the job's."""
    job_has_ended: bool = False
    """What is not done will not be."""

    @property
    def is_over(self) -> bool:
        return not (self.leased or self.waiting)

    @property
    def seconds_left(self) -> float | None:
        return (self.leased + self.waiting) / self.per_second if self.per_second else None


def sets_of(job: JSON, workers: Sequence[JSON], now: datetime) -> Iterator[SetProgress]:
    status = job.get("status", {})
    completed = parse_time(status.get("completionTime"))
    until = completed or now
    for said in status.get("shards") or ():
        ahead = _done_of_leases(said, workers)
        done, leased = said.get("done", 0) + ahead, said.get("leased", 0) - ahead
        began, ended = parse_time(said.get("startedAt")), parse_time(said.get("finishedAt")) or until
        seconds = (ended - began).total_seconds() if began else 0.0
        yield SetProgress(
            said["name"],
            said.get("epoch", 0),
            said["size"],
            done,
            leased,
            said.get("waiting", 0),
            said.get("failed", 0),
            done / seconds if done and seconds >= LEAST_SECONDS else None,
            completed is not None,
        )


def shards_line(found: SetProgress) -> str:
    epoch = f" epoch {found.epoch}" if found.epoch else ""
    share = f"{found.done / found.size:.0%}"
    parts = [f"{found.name}{epoch}: {share}, {found.done} of {found.size} done"]
    if found.job_has_ended and not found.is_over:
        parts.append(f"{found.leased + found.waiting} left undone")
    elif not found.is_over:
        parts += [f"{found.leased} leased", f"{found.waiting} waiting"]
    if found.failed:
        parts.append(f"{found.failed} failed")
    if found.per_second:
        parts.append(f"{significant(found.per_second)} a second")
    if found.seconds_left and not found.is_over and not found.job_has_ended:
        parts.append(f"about {duration(found.seconds_left)} left")
    return ", ".join(parts)


def _done_of_leases(said: Mapping[str, Any], workers: Sequence[JSON]) -> int:
    """What workers have reported of the leases that they hold now; the job counts it with their next one."""
    reports = {worker["spec"]["index"]: current_report(worker) for worker in workers}
    done = 0
    try:
        for lease in leases_from_text(said.get("leases") or ""):
            report = reports.get(lease.worker) or {}
            for told in report.get("shards") or ():
                if (told["name"], told.get("lease")) == (said["name"], lease.number):
                    rest = common(lease.elements, from_text(told.get("rest") or ""))
                    failed = from_text(told.get("failed") or "")
                    done += count(minus(minus(lease.elements, rest), failed))
    except ValueError:
        return 0  # of a version that writes leases in another form
    return done
