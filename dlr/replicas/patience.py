"""Long waits for other groups: who waits says so in the version's store, and names those that do not.

A process that hangs comes to no exchange, so all other groups wait for its group. Each of their processes
that waits for more than a moment adds to a number of its group in the store of the version, which the lead's
agent keeps, and takes it back when its wait is over. When its patience ends, one of them reads these numbers,
and it alone, since there is one for each group. It names the groups that do not wait to its agent, and the
controller makes the next version without them.
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
"""Time of a wait after which the agent and the other groups learn of it: half of the least patience."""
BUSY_SECONDS = 3_600.0
"""Time for which the agent expects no step then; a longer wait renews it."""
TICK_SECONDS = 1.0
"""Time between two looks at a long wait. They are counted, so that a process that was stopped itself does not
take that time for the others' absence."""
STEPS = 32
"""Number of steps whose median is the usual one."""
LONGEST_PAUSE_SECONDS = 600.0
MOST_DOUBLINGS = 16
"""Of a pause, which is the longest one by then."""
FORGET_ABSENCES_SECONDS = 1_800.0
"""Time after which an absence is forgotten; longer than the longest pause."""
TELLERS = {True: "teller", False: "teller/without-state"}
"""Key of the number of processes that look who waits, by whether they may name groups: one is enough."""


class GroupPace:
    """Usual time between two steps of all groups."""

    def __init__(self) -> None:
        self._seconds: deque[float] = deque(maxlen=STEPS)
        self._last: float | None = None

    def note(self, now: float | None) -> None:
        """Note that a step was committed.

        Args:
            now: monotonic time; None if this group made the step alone, so that its time does not count.
        """
        if self._last is not None and now is not None:
            self._seconds.append(now - self._last)
        self._last = now

    @property
    def patience_seconds(self) -> float:
        """Longest wait of this process for the others."""
        return patience_seconds(median(self._seconds) if self._seconds else None)


@dataclass(frozen=True)
class Absences:
    """How often a group was left out lately."""

    count: int = 0
    last: float | None = None

    def after(self, now: float) -> tuple[Absences, float]:
        """Count one; return also for how long the group keeps away before it takes part again.

        One that is always late would make the others wait again and again, so it keeps away for longer.

        Args:
            now: monotonic time.
        """
        is_again = self.last is not None and now - self.last < FORGET_ABSENCES_SECONDS
        count = min(self.count + 1, MOST_DOUBLINGS) if is_again else 0
        seconds = min(LEAST_PATIENCE_SECONDS * 2.0**count, LONGEST_PAUSE_SECONDS) if count else 0.0
        return Absences(count, now), seconds


# --- one wait --------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Add:
    """Add to a number in the store: answered by the sum."""

    key: str
    amount: int


@dataclass(frozen=True)
class ReadWaiting:
    """Read the numbers of all groups' waiting processes, by place: answered by these."""


@dataclass(frozen=True)
class Late:
    """Name the groups that do not come, by place; none once they have come."""

    places: tuple[int, ...]


@dataclass(frozen=True)
class Broken:
    """Report that the exchange has broken: all have come to it, and it does not end."""


WaitAct = Add | ReadWaiting | Late | Broken


@dataclass(frozen=True)
class LongWait:
    """A wait of one process for other groups, from the moment on in which it has become a long one. Pure.

    Each method returns the wait afterwards, and what to do next; what is answered goes to `after_answer`.
    """

    place: int
    """The place of its group in the version."""
    patience_seconds: float | None
    """How long it may last; None where this group's state isn't the job's, so that others that have it are
    worth any wait."""
    exchange_seconds: float
    """Time limit of an exchange to which all groups have come."""
    waited: float = QUIET_SECONDS
    due: float = 0.0
    """Time of the wait at which to look next."""
    is_teller: bool = False
    """Whether this process alone looks for all that wait."""
    late: tuple[int, ...] = ()
    """The places that it has named."""

    @property
    def _pause(self) -> float:
        return self.exchange_seconds if self.patience_seconds is None else self.patience_seconds

    @property
    def _teller(self) -> str:
        return TELLERS[self.patience_seconds is not None]

    def begin(self) -> tuple[LongWait, tuple[WaitAct, ...]]:
        """Count this process among those of its group that wait."""
        return replace(self, waited=QUIET_SECONDS, due=self._pause), (Add(waiting(self.place), 1),)

    def after_tick(self, seconds: float) -> tuple[LongWait, tuple[WaitAct, ...]]:
        """Go on after so many seconds in which the process ran."""
        waited = self.waited + seconds
        if waited < self.due:
            return replace(self, waited=waited), ()
        acts = (ReadWaiting(),) if self.is_teller else (Add(self._teller, 1),)
        return replace(self, waited=waited, due=waited + self._pause), acts

    def after_answer(self, act: WaitAct, answer: int | Sequence[int]) -> tuple[LongWait, tuple[WaitAct, ...]]:
        """Go on with what the store has answered."""
        if isinstance(act, ReadWaiting):
            assert not isinstance(answer, int)
            return self._after_look(tuple(place for place, count in enumerate(answer) if count <= 0))
        if act != Add(self._teller, 1):
            return self, ()
        if answer != 1:  # another one looks
            return self, (Add(self._teller, -1),)
        return replace(self, is_teller=True), (ReadWaiting(),)

    def _after_look(self, late: tuple[int, ...]) -> tuple[LongWait, tuple[WaitAct, ...]]:
        if late and self.patience_seconds is not None and late != self.late:
            return replace(self, late=late), (Late(late),)
        if not late and self.waited >= self.exchange_seconds:
            return self, (Broken(),)
        return self, ()

    def end(self) -> tuple[WaitAct, ...]:
        """Take back what this process has counted and named, the teller last."""
        taken_back: list[WaitAct] = [Add(waiting(self.place), -1)]
        if self.is_teller:
            taken_back += [Late(()), Add(self._teller, -1)] if self.late else [Add(self._teller, -1)]
        return tuple(taken_back)


def waiting(place: int) -> str:
    """Return the key of the number of a group's processes that wait."""
    return f"waiting/{place}"


@dataclass(frozen=True)
class Patience:
    """What follows from a long wait.

    Args:
        seconds: for how long the wait may last; None as in `LongWait`.
        exchange_seconds: time limit of an exchange to which all groups have come.
        late: is called with the places of groups that do not come, and with none once they have.
        broken: is called when an exchange to which all have come does not end.
    """

    seconds: Callable[[], float | None]
    exchange_seconds: float
    late: Callable[[Sequence[int]], None]
    broken: Callable[[], None]


class LongWaitThread(threading.Thread):
    """Carries out a long wait, to the end of a `with` block.

    Args:
        place: of this process's group in the version.
        size: number of groups.
        open_store: makes a store connection of the version.
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
    """Wait until `is_over` is true. A long wait is for other groups, so it is no hang.

    Args:
        changed: is notified of what may end the wait, and is held while `is_over` is called.
        long: makes the context of a wait that has become long.
        seconds: after which it ends anyway.
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
