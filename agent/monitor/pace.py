"""Whether training is slower than it was: windows of steps against the past of a world of this size. Pure.

A window has the median time of a few steps, so that a pause (a checkpoint, an evaluation) is one step of it
at most. That a step takes longer is said when most of the last windows are above nearly all of the past ones,
which noise of any distribution does about once in a million windows; and by a fifth at least.
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
"""So many of the last windows have to be above what was usual, or no more so, before either is said."""
LEAST_PAST = 24
MOST_PAST = 96
"""Windows that the present is compared with: fewer say nothing, of more each second one is forgotten."""
HIGH = 0.9
"""The share of past windows that those of today have to be above."""
RATIO = 1.2
WORLDS = 4
"""World sizes whose past is kept."""


@dataclass(frozen=True)
class Window:
    """A few steps that followed each other in one start of the processes."""

    since: datetime
    step: int
    """The first."""
    seconds_per_step: float
    """The median."""


class Past:
    """Windows of one world size, evenly from all of its past; never more than MOST_PAST."""

    def __init__(self, seconds_per_step: Iterable[float] = ()) -> None:
        self._kept: list[float] = []
        self._every = 1
        self._seen = 0
        for each in seconds_per_step:
            self.add(each)

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
        """What nearly all of them are below."""
        return sorted(self._kept)[min(math.ceil(HIGH * len(self._kept)), len(self._kept)) - 1]


class ProcessPace:
    """The pace of one worker's processes, over all their starts.

    Args:
        slow: what was known of it by an earlier agent of the slot.
        past: windows of that agent, by world size, the oldest first.
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
        """New processes have been started: their windows are compared with those of worlds of this size."""
        self._recent.clear()
        if world_size != self._world_size:
            self.slow = None
            self._world_size = world_size

    def add(self, window: Window) -> None:
        """Judge with this window, which is later than those before."""
        past = self._past_of(self._world_size)
        if len(self._recent) == RECENT and self.slow is None:
            past.add(self._recent[0].seconds_per_step)  # what may yet be judged is no past
        self._recent.append(window)
        if len(self._recent) == RECENT and len(past) >= LEAST_PAST:
            self.slow = judged(self.slow, tuple(self._recent), past.usual(), past.high())

    def _past_of(self, world_size: int) -> Past:
        known = self._past.pop(world_size, None) or Past()
        self._past[world_size] = known  # the last one is the newest
        if len(self._past) > WORLDS:
            del self._past[next(iter(self._past))]
        return known


def judged(known: Slow | None, recent: Sequence[Window], usual: float, high: float) -> Slow | None:
    """What is to be said of the last windows: as before, unless most of them say otherwise.

    Args:
        usual: the median of the past.
        high: what nearly all of the past is below.
    """
    if known is not None:
        between = math.sqrt(known.seconds_per_step * known.usual_seconds)
        below = sum(window.seconds_per_step <= between for window in recent)
        return None if below >= AGREEING else known
    limit = max(high, RATIO * usual)
    if sum(window.seconds_per_step > limit for window in recent) < AGREEING:
        return None
    first = _change(recent, limit)
    present = median(window.seconds_per_step for window in recent[first:])
    return Slow(recent[first].since, recent[first].step, present, usual)


def _change(recent: Sequence[Window], limit: float) -> int:
    """The place from which on the windows are above the limit, as far as they can be parted by it."""
    scores = [
        sum(1 if window.seconds_per_step > limit else -1 for window in recent[place:])
        for place in range(len(recent))
    ]
    return max(range(len(recent)), key=lambda place: (scores[place], -place))
