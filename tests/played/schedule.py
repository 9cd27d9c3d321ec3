"""Plays what several parts do side by side: the next act is drawn by a seed, and the clock is false.

An act is a function without arguments. `soon` has it happen in an order that the seed decides, `at` at a moment of the
false clock. The clock moves only when no act is due, and then to the next timer. So a seed replays a whole life, and a
schedule of a thousand acts takes milliseconds.
"""

from __future__ import annotations

import gc
import heapq
import os
from collections.abc import Callable, Iterable
from random import Random

Act = Callable[[], object]

MOST_ACTS = 100_000
"""Number of acts after which a schedule that does not end counts as one that turns in circles."""
BY_HAND = int(os.environ.get("DLR_SCHEDULES", "0"))
"""Number of schedules that each family plays by hand; 0: those of `make test`."""
FIRST = int(os.environ.get("DLR_FIRST_SEED", "0"))


class Timer:
    """An act that is due at a moment of the clock, unless it is cancelled."""

    def __init__(self, due: float, name: str, act: Act) -> None:
        self.due, self.name, self.act = due, name, act
        self.is_cancelled = False

    def cancel(self) -> None:
        self.is_cancelled = True


class Schedule:
    """One order of acts.

    Args:
        seed: decides it, and whatever the parts draw from `random`.
    """

    def __init__(self, seed: int) -> None:
        self.random = Random(seed)
        self.now = 1_000.0
        """Seconds of the false clock."""
        self.trace: list[str] = []
        """Names of the acts that have happened, in their order."""
        self._ready: list[tuple[str, Act]] = []
        self._timers: list[tuple[float, int, Timer]] = []
        self._count = 0

    def soon(self, name: str, act: Act) -> None:
        """Have an act happen at this moment of the clock, before or after the others that are due."""
        self._ready.append((name, act))

    def at(self, due: float, name: str, act: Act) -> Timer:
        """Have an act happen at a moment of the clock."""
        timer = Timer(due, name, act)
        self._count += 1
        heapq.heappush(self._timers, (due, self._count, timer))
        return timer

    def after(self, seconds: float, name: str, act: Act) -> Timer:
        """Have an act happen so many seconds from now."""
        return self.at(self.now + seconds, name, act)

    def names_to_come(self) -> list[str]:
        """Return the names of the acts that are to happen."""
        timers = (timer for _, _, timer in self._timers)
        return [*(name for name, _ in self._ready), *(each.name for each in timers if not each.is_cancelled)]

    def step(self) -> bool:
        """Let one act happen; return whether there was any."""
        while not self._ready:
            if not self._timers:
                return False
            due, _, timer = heapq.heappop(self._timers)
            if not timer.is_cancelled:
                self.now = max(self.now, due)
                self._ready.append((timer.name, timer.act))
        at = self.random.randrange(len(self._ready))
        self._ready[at], self._ready[-1] = self._ready[-1], self._ready[at]
        name, act = self._ready.pop()
        self.trace.append(name)
        act()
        return True

    def run(self, until: Callable[[], bool] = lambda: False) -> None:
        """Let acts happen until there are none, or until the condition holds.

        Raises:
            AssertionError: there is no end.
        """
        for _ in range(MOST_ACTS):
            if until() or not self.step():
                return
        raise AssertionError(f"no end after {MOST_ACTS} acts; the last: {self.trace[-10:]}")

    def chance(self, probability: float) -> bool:
        """Draw whether something happens."""
        return self.random.random() < probability


def play_seeds(play: Callable[[int], Iterable[str]], count: int, part: int = 0, parts: int = 1) -> None:
    """Play as many seeds, or as many as `DLR_SCHEDULES` says.

    Args:
        play: returns what went wrong with a seed, a sentence each.
        part: of so many `parts`, each of which plays every so many-th seed.

    Raises:
        AssertionError: some went wrong; it names the first few seeds.
    """
    wrong = []
    for seed in range(FIRST + part, FIRST + (BY_HAND or count), parts):
        gc.disable()  # it would take as long as all else
        try:
            found = list(play(seed))
        except AssertionError as error:
            found = [str(error) or "an assertion failed"]
        finally:
            gc.enable()
            gc.collect(0)  # what this life has left; 100,000 lives would take 25 GB
        if found:
            wrong.append("\n    ".join([f"seed {seed}:", *found[:6]]))
    assert not wrong, f"{len(wrong)} schedules went wrong:\n" + "\n".join(wrong[:5])
