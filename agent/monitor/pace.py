"""Detects that training became slower than it was in worlds of this size. Pure.

A window has the median time of a few steps, so that a pause (a checkpoint, an evaluation) affects one of them
at most. Training counts as slower if most of the last windows are above nearly all of the past ones, and by a
fifth at least. Noise of any distribution does that about once in a million windows.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from datetime import datetime
from statistics import median

from crds.agent_report import Slow

RECENT = 12
AGREEING = 9
"""Number of the last RECENT windows that have to agree before training counts as slower, or as usual
again."""
LEAST_PAST = 24
MOST_PAST = 96
"""Limits of the number of past windows: with fewer there is no judgement; with more, every second is
dropped."""
HIGH = 0.9
"""Share of the past windows that present ones have to exceed."""
RATIO = 1.2
WORLDS = 4
"""Number of world sizes whose past is kept."""


@dataclass(frozen=True)
class Window:
    """A few consecutive steps of one start of the processes."""

    since: datetime
    step: int
    """First step."""
    seconds_per_step: float
    """Median time of a step."""


class Past:
    """Up to MOST_PAST windows of one world size, evenly spread over its past."""

    def __init__(self) -> None:
        self._kept: list[float] = []
        self._every = 1
        self._seen = 0

    def __len__(self) -> int:
        return len(self._kept)

    def add(self, seconds_per_step: float) -> None:
        self._seen += 1
        if self._seen % self._every:
            return
        self._kept.append(seconds_per_step)
        if len(self._kept) > MOST_PAST:
            self._kept = self._kept[1::2]
            self._every *= 2

    def usual(self) -> float:
        return median(self._kept)

    def high(self) -> float:
        """Return the quantile HIGH of the windows."""
        return sorted(self._kept)[min(math.ceil(HIGH * len(self._kept)), len(self._kept)) - 1]


class ProcessPace:
    """The pace of one worker's processes, over all their starts.

    Args:
        slow: slowness that an earlier agent of the slot has reported.
        past: world size and seconds per step of that agent's windows, the oldest first.
    """

    def __init__(
        self, slow: Slow | None = None, past: Iterable[tuple[int, float]] = (), world_size: int = 0
    ) -> None:
        self.slow = slow
        self._world_size = world_size
        self._past: dict[int, Past] = {}
        self._recent: deque[Window] = deque(maxlen=RECENT)
        for size, seconds in past:
            self._past_of(size).add(seconds)

    def begin(self, world_size: int) -> None:
        """Begin with new processes, which are compared with the past of worlds of this size."""
        self._recent.clear()
        if world_size != self._world_size:
            self.slow = None
            self._world_size = world_size

    def add(self, window: Window) -> None:
        """Add the next window, and judge the last ones."""
        past = self._past_of(self._world_size)
        if len(self._recent) == RECENT and self.slow is None:
            past.add(self._recent[0].seconds_per_step)  # recent windows, which are judged, are not the past
        self._recent.append(window)
        if len(self._recent) == RECENT and len(past) >= LEAST_PAST:
            self.slow = judged(self.slow, tuple(self._recent), past.usual(), past.high())

    def _past_of(self, world_size: int) -> Past:
        past = self._past.pop(world_size, None) or Past()
        self._past[world_size] = past  # the last one is the newest
        if len(self._past) > WORLDS:
            del self._past[next(iter(self._past))]
        return past


def judged(slow: Slow | None, recent: Sequence[Window], usual: float, high: float) -> Slow | None:
    """Return the slowness of the last windows; unchanged unless most of them contradict it.

    Args:
        slow: slowness so far; None if training is not slow.
        usual: the median of the past.
        high: the quantile HIGH of the past.
    """
    if slow is not None:
        between = math.sqrt(slow.seconds_per_step * slow.usual_seconds)
        below = sum(window.seconds_per_step <= between for window in recent)
        return None if below >= AGREEING else slow
    limit = max(high, RATIO * usual)
    if sum(window.seconds_per_step > limit for window in recent) < AGREEING:
        return None
    first = _change(recent, limit)
    present = median(window.seconds_per_step for window in recent[first:])
    return Slow(recent[first].since, recent[first].step, present, usual)


def _change(recent: Sequence[Window], limit: float) -> int:
    """Return the index from which on the windows are best described as above the limit."""
    scores = [
        sum(1 if window.seconds_per_step > limit else -1 for window in recent[place:])
        for place in range(len(recent))
    ]
    return max(range(len(recent)), key=lambda place: (scores[place], -place))
