"""Long waits for other groups: waiting processes count themselves in a store, and report absent groups.

All other groups wait for a group with a process that hangs. Each of their processes that waits for more than
a moment increments its group's counter in the store of the version, at the lead's agent, and decrements it
after its wait. When its patience ends, a single process reads the counters of all groups. It reports the
groups that do not wait to its agent, and the controller creates the next version without them.
"""

from __future__ import annotations

import logging
import threading
from collections import deque
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, replace
from math import inf
from statistics import median
from typing import Any

from torch.distributed import Store  # type: ignore[attr-defined]

from crds.grouping import LEAST_PATIENCE_SECONDS, patience_seconds
from dlr import progress

logger = logging.getLogger(__name__)

QUIET_SECONDS = 5.0
"""Time after which a wait is announced to the agent and the other groups: half of the least patience."""
BUSY_SECONDS = 3_600.0
"""Time for which hang detection is suspended then; a longer wait renews it."""
TICK_SECONDS = 1.0
"""Time between two looks at a long wait. Ticks are counted, so that the time in which a process was stopped
itself is not attributed to the others."""
STEPS = 32
"""Number of steps for the median."""
LONGEST_PAUSE_SECONDS = 600.0
MOST_DOUBLINGS = 16
"""Most doublings of a pause, which has reached its limit by then."""
FORGET_ABSENCES_SECONDS = 1_800.0
"""Time after which an absence is forgotten; longer than the longest pause."""
TELLERS = {True: "teller", False: "teller/without-state"}
"""Key of the counter of tellers, the processes that read the others, by whether they may report groups."""


class GroupPace:
    """Usual time between two steps of all groups."""

    def __init__(self) -> None:
        self._seconds: deque[float] = deque(maxlen=STEPS)
        self._last: float | None = None

    def note(self, now: float | None) -> None:
        """Record that a step was committed.

        Args:
            now: monotonic time, in seconds; None if this group made the step alone, which does not count.
        """
        if self._last is not None and now is not None:
            self._seconds.append(now - self._last)
        self._last = now

    @property
    def patience_seconds(self) -> float:
        """Limit of this process's waits for the others."""
        return patience_seconds(median(self._seconds) if self._seconds else None)


@dataclass(frozen=True)
class Absences:
    """Recent absences of a group."""

    count: int = 0
    last: float | None = None

    def after(self, now: float) -> tuple[Absences, float]:
        """Count an absence; return also the pause before the group takes part again, in seconds.

        The pause grows for a group that is late again and again, since the others wait for it each time.

        Args:
            now: monotonic time, in seconds.
        """
        is_again = self.last is not None and now - self.last < FORGET_ABSENCES_SECONDS
        count = min(self.count + 1, MOST_DOUBLINGS) if is_again else 0
        seconds = min(LEAST_PATIENCE_SECONDS * 2.0**count, LONGEST_PAUSE_SECONDS) if count else 0.0
        return Absences(count, now), seconds


# --- one wait --------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Add:
    """Add to a counter in the store; the answer is the sum."""

    key: str
    amount: int


@dataclass(frozen=True)
class ReadWaiting:
    """Read the counters of all groups' waiting processes; the answer has them by place."""


@dataclass(frozen=True)
class Late:
    """Report the groups that do not come, by place; none once they have come."""

    places: tuple[int, ...]


@dataclass(frozen=True)
class Broken:
    """Report that the exchange is broken: all groups have come to it, and it does not end."""


WaitAct = Add | ReadWaiting | Late | Broken


@dataclass(frozen=True)
class LongWait:
    """A long wait of one process for other groups, after QUIET_SECONDS. Pure.

    Each method returns the wait afterwards, and the next actions, whose answers go to `after_answer`.
    """

    place: int
    """Position of its group in the version."""
    patience_seconds: float | None
    """Limit of the wait; None if this group lacks the job's state, so that it must wait for others."""
    exchange_seconds: float
    """Time limit of an exchange to which all groups have come."""
    waited: float = QUIET_SECONDS
    due: float = 0.0
    """Time of the wait at which to look next."""
    is_teller: bool = False
    """Whether this process reads the counters for all waiting processes."""
    late: tuple[int, ...] = ()
    """Places that it has reported."""

    @property
    def _pause(self) -> float:
        return self.exchange_seconds if self.patience_seconds is None else self.patience_seconds

    @property
    def _teller(self) -> str:
        return TELLERS[self.patience_seconds is not None]

    def begin(self) -> tuple[LongWait, tuple[WaitAct, ...]]:
        """Count this process among its group's waiting ones."""
        return replace(self, waited=QUIET_SECONDS, due=self._pause), (Add(waiting(self.place), 1),)

    def after_tick(self, seconds: float) -> tuple[LongWait, tuple[WaitAct, ...]]:
        """Continue after so many seconds in which the process ran."""
        waited = self.waited + seconds
        if waited < self.due:
            return replace(self, waited=waited), ()
        acts = (ReadWaiting(),) if self.is_teller else (Add(self._teller, 1),)
        return replace(self, waited=waited, due=waited + self._pause), acts

    def after_answer(self, act: WaitAct, answer: int | Sequence[int]) -> tuple[LongWait, tuple[WaitAct, ...]]:
        """Continue with an answer of the store."""
        if isinstance(act, ReadWaiting):
            assert not isinstance(answer, int)
            return self._after_look(tuple(place for place, count in enumerate(answer) if count <= 0))
        if act != Add(self._teller, 1):
            return self, ()
        if answer != 1:  # there is another teller
            return self, (Add(self._teller, -1),)
        return replace(self, is_teller=True), (ReadWaiting(),)

    def _after_look(self, late: tuple[int, ...]) -> tuple[LongWait, tuple[WaitAct, ...]]:
        if late and self.patience_seconds is not None and late != self.late:
            return replace(self, late=late), (Late(late),)
        if not late and self.waited >= self.exchange_seconds:
            return self, (Broken(),)
        return self, ()

    def end(self) -> tuple[WaitAct, ...]:
        """Undo this process's counters and reports, the teller's counter last."""
        taken_back: list[WaitAct] = [Add(waiting(self.place), -1)]
        if self.is_teller:
            taken_back += [Late(()), Add(self._teller, -1)] if self.late else [Add(self._teller, -1)]
        return tuple(taken_back)


def waiting(place: int) -> str:
    """Return the key of the counter of a group's waiting processes."""
    return f"waiting/{place}"


@dataclass(frozen=True)
class Patience:
    """Limits of a long wait, and actions when they are exceeded.

    Args:
        seconds: returns the limit of the wait; None as in `LongWait`.
        exchange_seconds: time limit of an exchange to which all groups have come.
        late: called with the places of groups that do not come, and with none once they have.
        broken: called when an exchange to which all have come does not end.
    """

    seconds: Callable[[], float | None]
    exchange_seconds: float
    late: Callable[[Sequence[int]], None]
    broken: Callable[[], None]


class LongWaitThread(threading.Thread):
    """Carries out a long wait, up to the end of a `with` block.

    Args:
        place: position of this process's group in the version.
        size: number of groups.
        open_store: creates a store connection of the version.
    """

    def __init__(self, place: int, size: int, open_store: Callable[[], Store], patience: Patience) -> None:
        super().__init__(name="dlr-replicas-wait", daemon=True)
        self._place, self._size = place, size
        self._open_store = open_store
        self._patience = patience
        self._over = threading.Event()

    def __enter__(self) -> None:
        self.start()

    def __exit__(self, *_: Any) -> None:
        self._over.set()

    def run(self) -> None:
        try:
            store = self._open_store()
            wait = LongWait(self._place, self._patience.seconds(), self._patience.exchange_seconds)
            wait = self._carry_out(store, *wait.begin())
            while not self._over.wait(TICK_SECONDS):
                wait = self._carry_out(store, *wait.after_tick(TICK_SECONDS))
            self._carry_out(store, wait, wait.end())
        except Exception as error:  # the version is over, or its lead cannot be reached
            logger.debug("which other groups wait cannot be seen: %s", error)

    def _carry_out(self, store: Store, wait: LongWait, acts: Sequence[WaitAct]) -> LongWait:
        queue = deque(acts)
        while queue:
            match act := queue.popleft():
                case Late(places):
                    self._patience.late(places)
                    continue
                case Broken():
                    self._patience.broken()
                    continue
                case Add(key, amount):
                    wait, more = wait.after_answer(act, store.add(key, amount))
                case ReadWaiting():
                    counts = [store.add(waiting(place), 0) for place in range(self._size)]
                    wait, more = wait.after_answer(act, counts)
            queue.extend(more)
        return wait


def wait_for(
    changed: threading.Condition,
    is_over: Callable[[], object],
    long: Callable[[], AbstractContextManager[Any]] = nullcontext,
    seconds: float = inf,
) -> None:
    """Wait until `is_over` is true; hang detection is suspended in a long wait, which is for other groups.

    Args:
        changed: notified of events that may end the wait; locked while `is_over` is called.
        long: creates the context of a long wait.
        seconds: time limit.
    """
    with changed:
        if changed.wait_for(is_over, min(QUIET_SECONDS, seconds)):
            return
    left = seconds - QUIET_SECONDS
    with long():
        while left > 0:
            with progress.busy(BUSY_SECONDS), changed:
                if changed.wait_for(is_over, min(BUSY_SECONDS / 2, left)):
                    return
            left -= BUSY_SECONDS / 2
