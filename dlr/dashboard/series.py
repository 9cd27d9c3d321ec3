"""How long a job's steps took: the past by rounds, as agents keep it, and the present as it is seen.

Nobody stores a time series; what is older than the dashboard has one mean a round.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from dlr.commands.job.failures import current_report
from dlr.commands.job.timeline.life import Life

JSON = dict[str, Any]

MOST_SAMPLES = 720


@dataclass
class StepTimes:
    """Samples of one job, never more than MOST_SAMPLES: then each second one goes, and as many are taken."""

    uid: str
    """Of the job: a namesake begins anew."""
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


def rounds_of(life: Life, workers: Sequence[JSON]) -> list[list[float]]:
    """[begin, end, seconds a step] of each round of which a worker still tells, in seconds since submission.

    Of each round the worker speaks that came furthest in it. It begins where its world first trained.
    """
    told: dict[int, tuple[int, int, float]] = {}
    for worker in workers:
        for each in current_report(worker).get("rounds") or ():
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
