"""Workers that are far behind the others, for the controller's warning and for a verdict. Pure.

It imports nothing heavy, since `dlr job status` loads it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from statistics import median

from controller.wording import counted, some_of

MOST_NAMED = 3
BEHIND_SECONDS = 15.0
"""Lag behind the median of all workers that counts as far behind, beyond a heartbeat's time-out."""
BEHIND_STEPS = 100
"""The same in steps, where the time of a step is unknown."""


@dataclass(frozen=True)
class WorkerPace:
    """Step and speed of a worker."""

    worker: str
    step: int
    seconds_per_step: float | None


def far_behind(found: Sequence[WorkerPace], heartbeat_timeout_seconds: float) -> list[WorkerPace]:
    """Return the workers further behind the median than a late report explains, the furthest first.

    Reports of steps come with heartbeats.
    """
    if len(found) < 2:
        return []
    middle = median(each.step for each in found)
    speeds = [each.seconds_per_step for each in found if each.seconds_per_step]
    usual = median(speeds) if speeds else None
    most = heartbeat_timeout_seconds + BEHIND_SECONDS

    def is_far(each: WorkerPace) -> bool:
        lag, pace = middle - each.step, each.seconds_per_step or usual
        return lag > 1 and (lag > BEHIND_STEPS if pace is None else lag * pace > most)

    behind = [each for each in found if is_far(each)]
    return sorted(behind, key=lambda each: (each.step, each.worker))


def behind_line(behind: Sequence[WorkerPace], workers: int) -> str:
    names_ = some_of([each.worker for each in behind], MOST_NAMED)
    verb = "is" if len(behind) == 1 else "are"
    return f"{len(behind)} of {counted(workers, 'worker')} {verb} far behind the others: {names_}"
