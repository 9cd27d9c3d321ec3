"""How far a job's training is, how fast it goes, and what of its time went where; pure functions."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from statistics import median
from typing import Any

from crds import names
from crds.elasticjob import JobState
from dlr.commands.job.failures import current_report
from dlr.commands.output import duration, parse_time, significant

JSON = dict[str, Any]


@dataclass(frozen=True)
class Progress:
    step: int
    total: int | None
    """Where the job's annotation tells it."""
    seconds_per_step: float | None

    @property
    def share(self) -> float | None:
        return min(1.0, self.step / self.total) if self.total else None

    @property
    def seconds_left(self) -> float | None:
        if self.total is None or self.seconds_per_step is None:
            return None
        return max(0, self.total - self.step) * self.seconds_per_step


def progress_of(job: JSON, workers: Sequence[JSON]) -> Progress | None:
    """None as long as no step was told."""
    reports = [current_report(worker).get("progress") or {} for worker in workers]
    told = [(job.get("status") or {}).get("goodput") or {}]
    steps = [entry["lastStep"] for entry in told if entry.get("lastStep") is not None]
    steps += [report["step"] for report in reports if report.get("step") is not None]
    if not steps:
        return None
    speeds = [report["secondsPerStep"] for report in reports if report.get("secondsPerStep")]
    return Progress(max(steps), total_steps(job), median(speeds) if speeds else None)


def total_steps(job: JSON) -> int | None:
    """From the annotation; what is not a positive whole number is not there."""
    text = str((job["metadata"].get("annotations") or {}).get(names.ANNOTATION_TOTAL_STEPS, "")).strip()
    return int(text) if text.isdecimal() and int(text) > 0 else None


def progress_line(progress: Progress, *, is_finished: bool) -> str:
    parts = [f"step {progress.step}" + (f" of {progress.total}" if progress.total else "")]
    if progress.seconds_per_step and not is_finished:
        parts.append(f"{significant(progress.seconds_per_step)} s a step")
        if progress.seconds_left:
            parts.append(f"about {duration(progress.seconds_left)} left")
    share = "" if progress.share is None else f"{progress.share:.0%}, "
    return share + ", ".join(parts)


def seconds_by_state(job: JSON, now: datetime) -> dict[str, float]:
    """Where the time since submission went, the current state's up to now; empty if it was not kept."""
    status = job.get("status") or {}
    goodput = status.get("goodput")
    if not goodput:
        return {}
    seconds: dict[str, float] = dict(goodput.get("seconds") or {})
    until = parse_time(status.get("completionTime")) or now
    since = parse_time(goodput["since"]) or until
    state = goodput["state"]
    seconds[state] = seconds.get(state, 0.0) + max(0.0, (until - since).total_seconds())
    order = [state.value for state in JobState]
    known = {state: seconds[state] for state in order if seconds.get(state, 0.0) > 0}
    return known | {state: value for state, value in seconds.items() if state not in order and value > 0}


def time_line(seconds: dict[str, float]) -> str:
    total = sum(seconds.values())
    if total <= 0:
        return ""
    return ", ".join(
        f"{state} {duration(value)} ({value / total:.0%})"
        for state, value in sorted(seconds.items(), key=lambda item: -item[1])
    )
