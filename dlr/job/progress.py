"""Progress of a job: its steps and their speed, its newest checkpoints, its shard sets. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from statistics import median
from typing import Any

from crds import names
from crds.agent_report import steps_are_relative
from crds.grouping import index_of, worker_number
from crds.intervals import Intervals, common, count, from_text, minus
from crds.leases import holder_number, leases_from_text
from crds.shard_set import MAX_SHARD_RANGES
from dlr.job.report import current_report, is_finished, ranks
from dlr.job.wording import duration, parse_time, percent_done, significant
from dlr.kube.api import JSON

MOST_DIGITS = 15
"""Most digits of a total from the annotation; JavaScript represents larger numbers inexactly."""
LEAST_SECONDS = 1.0
"""Youngest age of a shard set with a rate."""


@dataclass(frozen=True)
class JobProgress:
    step: int
    total: int | None
    """Total of the job's annotation, if it has one; None if `since_start`."""
    seconds_per_step: float | None
    since_start: bool = False
    """Whether steps count from the processes' last start, which began at an unknown step."""

    @property
    def share(self) -> float | None:
        return min(1.0, self.step / self.total) if self.total else None

    @property
    def seconds_left(self) -> float | None:
        if self.total is None or self.seconds_per_step is None:
            return None
        return max(0, self.total - self.step) * self.seconds_per_step


def progress_of(job: JSON, workers: Sequence[JSON], furthest: int | None = None) -> JobProgress | None:
    """Return the highest step and the median speed of all workers; None before the first report.

    After a lost checkpoint the workers may be behind the job's account; the time left is based on theirs.

    Args:
        furthest: highest step in the job's account, used if no worker reports one.
    """
    agents = [current_report(worker) for worker in workers]
    reports = [each.get("progress") or {} for each in agents]
    steps = [report["step"] for report in reports if report.get("step") is not None]
    if not steps and furthest is not None:
        steps = [furthest]
    if not steps:
        return None
    speeds = [report["secondsPerStep"] for report in reports if report.get("secondsPerStep")]
    newest = [each["rounds"][-1] for each in agents if each.get("rounds")]
    since_start = steps_are_relative([(each.get("counted"), each.get("startUnknown")) for each in newest])
    total = None if since_start else total_steps(job)
    return JobProgress(max(steps), total, median(speeds) if speeds else None, since_start)


def total_steps(job: JSON) -> int | None:
    """Return the annotation's total; None unless it is a positive whole number of at most 15 digits."""
    text = str((job["metadata"].get("annotations") or {}).get(names.ANNOTATION_TOTAL_STEPS, "")).strip()
    return int(text) or None if text.isdecimal() and len(text) <= MOST_DIGITS else None


def progress_line(progress: JobProgress, *, is_finished: bool) -> str:
    parts = [f"step {progress.step}" + (f" of {progress.total}" if progress.total else "")]
    if progress.since_start:
        parts[0] += " since its last start"
    if progress.seconds_per_step and not is_finished:
        parts.append(f"{significant(progress.seconds_per_step)} s a step")
        if progress.seconds_left:
            parts.append(f"about {duration(progress.seconds_left)} left")
    share = f"{percent_done(progress.step, progress.total)}, " if progress.total else ""
    return share + ", ".join(parts)


def checkpoints_line(job: JSON, workers: Sequence[JSON]) -> str:
    """Return the newest steps in memory and in storage, and the interval of saves; empty without any."""
    reports = [current_report(worker) for worker in workers]
    in_world = ranks(job)
    memories = [
        report.get("memory") or {}
        for worker, report in zip(workers, reports, strict=True)
        if worker["spec"]["type"] == names.WORKER and worker["spec"]["index"] in in_world
    ]
    spec = job["spec"]["replicaSpecs"].get(names.WORKER, {}).get("memoryCheckpoint") or {}
    parts = [] if is_finished(job) else _in_memory(memories, wants_copies=bool(spec.get("replicas")))
    stored = [(report.get("progress") or {}).get("checkpointStep") for report in reports]
    if steps := [step for step in stored if step is not None]:
        parts.append(f"step {max(steps)} in storage")
    return ", ".join(parts)


def _in_memory(memories: Sequence[JSON], *, wants_copies: bool) -> list[str]:
    """Describe the newest checkpoint in the memory of all workers of a world."""
    parts = []
    step, replicated = (_of_all(memories, key) for key in ("step", "replicatedStep"))
    if step is not None:
        parts.append(f"step {step} in memory")
    if replicated is not None:
        parts.append(f"step {replicated} in other Pods' memory too")
    elif step is not None and wants_copies:
        alone = len(memories) == 1
        parts.append("no other Pod to hold a copy" if alone else "none in other Pods' memory yet")
    every = next((memory["every"] for memory in memories if memory.get("every")), None)
    if parts and every is not None:
        parts.append("saved every step" if every == 1 else f"saved every {every} steps")
    return parts


def _of_all(memories: Sequence[JSON], key: str) -> int | None:
    steps = [memory.get(key) for memory in memories]
    found = [step for step in steps if step is not None]
    return min(found) if found and len(found) == len(steps) else None


@dataclass(frozen=True)
class SetProgress:
    """The progress of a shard set, in elements."""

    name: str
    epoch: int
    size: int
    done: int
    """Done elements, including those of open leases that workers have reported."""
    leased: int
    """Leased elements that are not done yet."""
    waiting: int
    failed: int
    per_second: float | None
    """Elements per second since the set's start, up to its end or the job's."""
    job_has_ended: bool = False

    @property
    def is_over(self) -> bool:
        return not (self.leased or self.waiting)

    @property
    def seconds_left(self) -> float | None:
        return (self.leased + self.waiting) / self.per_second if self.per_second else None


def sets_of(
    job: JSON, shard_sets: Sequence[JSON], workers: Sequence[JSON], now: datetime
) -> list[SetProgress]:
    """Return the progress of each of a job's ShardSets."""
    completed = parse_time(job.get("status", {}).get("completionTime"))
    found = []
    for each in (status for shard_set in shard_sets if (status := shard_set.get("status"))):
        ahead = _done_of_leases(each, job["metadata"]["name"], workers)
        done = each.get("done", 0) + ahead
        began = parse_time(each.get("startedAt"))
        ended = parse_time(each.get("finishedAt")) or completed or now
        seconds = (ended - began).total_seconds() if began else 0.0
        found.append(
            SetProgress(
                each["name"],
                each.get("epoch", 0),
                each["size"],
                done,
                each.get("leased", 0) - ahead,
                each.get("waiting", 0),
                each.get("failed", 0),
                done / seconds if done and seconds >= LEAST_SECONDS else None,
                completed is not None,
            )
        )
    return found


def shards_line(found: SetProgress) -> str:
    epoch = f" epoch {found.epoch}" if found.epoch else ""
    parts = [
        f"{found.name}{epoch}: {percent_done(found.done, found.size)}, {found.done} of {found.size} done"
    ]
    if found.job_has_ended and not found.is_over:
        parts.append(f"{found.leased + found.waiting} left undone")
    elif not found.is_over:
        parts += [f"{found.leased} leased", f"{found.waiting} waiting"]
    return ", ".join([*parts, *pace_parts(found)])


def pace_parts(found: SetProgress) -> list[str]:
    """Describe the failed elements, the rate, and the time left."""
    parts = [f"{found.failed} failed"] if found.failed else []
    if found.per_second:
        parts.append(f"{significant(found.per_second)} a second")
    if found.seconds_left and not found.is_over and not found.job_has_ended:
        parts.append(f"about {duration(found.seconds_left)} left")
    return parts


def _number(job: str, worker: JSON) -> int:
    """Return a worker's number in the leases of a job; the worker may belong to a replica group."""
    group, spec = index_of(job, worker["spec"].get("jobName") or ""), worker["spec"]
    number = holder_number(spec["type"], int(spec["index"]))
    return number if group is None else worker_number(group, number)


def _done_of_leases(shards: Mapping[str, Any], job: str, workers: Sequence[JSON]) -> int:
    """Return the number of done elements of open leases; the set counts them at the next request."""
    reports = {_number(job, worker): current_report(worker) for worker in workers}
    try:
        leases = leases_from_text(shards.get("leases") or "")
    except ValueError:
        return 0  # another version with another format
    return sum(
        _done_of_lease(lease.elements, each)
        for lease in leases
        for each in (reports.get(lease.worker) or {}).get("shards") or ()
        if (each["name"], each.get("lease")) == (shards["name"], lease.number)
    )


def _done_of_lease(elements: Intervals, report: Mapping[str, Any]) -> int:
    try:
        rest, failed = (from_text(report.get(key) or "", MAX_SHARD_RANGES) for key in ("rest", "failed"))
    except ValueError:
        return 0  # the controller ignores such a report, too
    return count(minus(minus(elements, common(elements, rest)), failed))
