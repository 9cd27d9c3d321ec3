"""Workers that are far behind the others, for the controller's warning and for a verdict. Pure.

It stands on nothing heavy: `dlr job status` loads it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from statistics import median

from controller.wording import counted, some_of

MOST_NAMED = 3
BEHIND_SECONDS = 15.0
"""Time beyond a heartbeat's time-out that a worker is behind the median of all, by its own steps."""
BEHIND_STEPS = 100
"""Steps behind it, where the time of a step is not known."""


@dataclass(frozen=True)
class WorkerPace:
    """How far a worker is, and how fast."""

    worker: str
    step: int
    seconds_per_step: float | None


def far_behind(found: Sequence[WorkerPace], heartbeat_timeout_seconds: float) -> list[WorkerPace]:
    """Return the workers that are so far behind the median that no late report explains it, the last first.

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
