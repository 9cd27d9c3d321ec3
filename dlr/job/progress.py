"""How far a job's training is, and how fast it goes; pure functions."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from statistics import median
from typing import Any

from crds import names
from dlr.job.report import current_report
from dlr.job.wording import duration, significant

JSON = dict[str, Any]


@dataclass(frozen=True)
class Progress:
    step: int
    total: int | None
    """The total of the job's annotation, if it has one."""
    seconds_per_step: float | None

    @property
    def share(self) -> float | None:
        return min(1.0, self.step / self.total) if self.total else None

    @property
    def seconds_left(self) -> float | None:
        if self.total is None or self.seconds_per_step is None:
            return None
        return max(0, self.total - self.step) * self.seconds_per_step


def progress_of(job: JSON, workers: Sequence[JSON], furthest: int | None = None) -> Progress | None:
    """None as long as no step was told. `furthest` is the highest step that the job's account has."""
    reports = [current_report(worker).get("progress") or {} for worker in workers]
    steps = [report["step"] for report in reports if report.get("step") is not None]
    steps += [] if furthest is None else [furthest]
    if not steps:
        return None
    speeds = [report["secondsPerStep"] for report in reports if report.get("secondsPerStep")]
    return Progress(max(steps), total_steps(job), median(speeds) if speeds else None)


def total_steps(job: JSON) -> int | None:
    """Return the annotation's total; None unless it is a positive whole number."""
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
