"""How long a job's steps took and what they told: the past as agents keep it, and the present as it is seen.

Rank 0's agent keeps a series of a hundred points; where there is none (an older agent's), each round has a
mean.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any

from dlr.job.report import ranks
from dlr.job.timeline.life import Life
from dlr.job.wording import parse_time

JSON = dict[str, Any]

MOST_SAMPLES = 720
NO_PAST: JSON = {"at": [], "steps": [], "seconds": [], "numbers": {}}


@dataclass
class StepTimes:
    """Samples of one job, never more than MOST_SAMPLES: then each second one goes, and as many are taken."""

    uid: str
    """The job's uid: another job of the same name starts with nothing."""
    interval_seconds: float = 1.0
    samples: list[tuple[float, float]] = field(default_factory=list)
    """(seconds since submission, seconds a step)"""

    def add(self, at: float, seconds_per_step: float | None) -> None:
        """What is no later than the last sample by an interval is left out."""
        if seconds_per_step is None or (self.samples and at < self.samples[-1][0] + self.interval_seconds):
            return
        self.samples.append((round(at, 1), float(f"{seconds_per_step:.3g}")))
        if len(self.samples) > MOST_SAMPLES:
            self.samples = self.samples[::2]
            self.interval_seconds *= 2


def past_of(job: JSON, reports: Sequence[tuple[JSON, JSON]], submitted: datetime) -> JSON:
    """The series that rank 0's agent tells, or who has told one last: columns, times since submission.

    Args:
        reports: of the job's workers, as `Case.reports`.
    """
    told = [(worker["spec"]["index"], series) for worker, report in reports if (series := _series_of(report))]
    first = min(ranks(job), default=None)
    _, series = max(told, key=lambda each: (each[0] == first, each[1][-1]["time"]), default=(None, []))
    if not series:
        return NO_PAST
    names = dict.fromkeys(name for point in series for name in point.get("numbers") or ())
    times = [(parse_time(point["time"]) or submitted) - submitted for point in series]
    return {
        "at": [round(each.total_seconds(), 1) for each in times],
        "steps": [point["step"] for point in series],
        "seconds": [float(f"{point['secondsPerStep']:.3g}") for point in series],
        "numbers": {name: [(point.get("numbers") or {}).get(name) for point in series] for name in names},
    }


def _series_of(report: JSON) -> list[JSON]:
    """Its points, with the newest window at the end."""
    series = report.get("series") or {}
    points, latest = list(series.get("points") or ()), series.get("latest")
    return (
        points if latest is None or (points and points[-1]["step"] >= latest["step"]) else [*points, latest]
    )


def rounds_of(life: Life, reports: Sequence[tuple[JSON, JSON]]) -> list[list[float]]:
    """[begin, end, seconds a step] of each round of which a worker still tells, in seconds since submission.

    Of each round the worker speaks that came furthest in it. It begins where its world first trained.

    Args:
        reports: of the job's workers, as `Case.reports`.
    """
    told: dict[int, tuple[int, int, float]] = {}
    for _, report in reports:
        for each in report.get("rounds") or ():
            steps = each["lastStep"] - each["firstStep"]
            if steps > 0 and steps >= told.get(each["round"], (0, 0, 0.0))[0]:
                told[each["round"]] = (steps, each["lastStep"], each.get("steppingSeconds") or 0.0)
    begins = {each.number: each.at for each in life.rounds}
    found = []
    for number, (steps, _, seconds) in sorted(told.items()):
        if number in begins and seconds:
            begin = begins[number]
            end = min(begin + seconds, life.seconds)
            found.append([round(begin, 1), round(end, 1), float(f"{seconds / steps:.3g}")])
    return found
