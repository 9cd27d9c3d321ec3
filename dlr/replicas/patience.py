"""Long waits for other groups: who waits says so in the version's store, and names those that do not.

A process that hangs comes to no exchange, so all other groups wait for its group. Each of their processes
that waits for more than a moment adds to a number of its group in the store of the version, which the lead's
agent keeps, and takes it back when its wait is over. When its patience ends, one of them reads these numbers,
and it alone, since there is one for each group; it tells its agent which groups do not wait. The controller
makes the next version without them.
"""

from __future__ import annotations

import logging
import threading
from collections import deque
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from statistics import median
from typing import Any, TypeVar

from torch.distributed import Store  # type: ignore[attr-defined]

from crds.grouping import LEAST_PATIENCE_SECONDS, patience_seconds
from dlr import progress

logger = logging.getLogger(__name__)
T = TypeVar("T")

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


class Pace:
    """Usual time between two steps of all groups."""

    def __init__(self) -> None:
        self._seconds: deque[float] = deque(maxlen=STEPS)
        self._last: float | None = None

    def note(self, now: float) -> None:
        """Note that a step was committed.

        Args:
            now: monotonic time.
        """
        if self._last is not None:
            self._seconds.append(now - self._last)
        self._last = now

    @property
    def patience_seconds(self) -> float:
        """Longest wait of this process for the others."""
        return patience_seconds(median(self._seconds) if self._seconds else None)


class Absences:
    """How often a group was left out lately."""

    def __init__(self) -> None:
        self._count = 0
        self._last: float | None = None

    def pause_seconds(self, now: float) -> float:
        """Note one, and return for how long the group keeps away before it takes part again.

        One that is always late would make the others wait again and again, so it keeps away for longer.

        Args:
            now: monotonic time.
        """
        is_again = self._last is not None and now - self._last < FORGET_ABSENCES_SECONDS
        self._count = self._count + 1 if is_again else 0
        self._last = now
        doublings = min(self._count, MOST_DOUBLINGS)
        return min(LEAST_PATIENCE_SECONDS * 2.0**doublings, LONGEST_PAUSE_SECONDS) if doublings else 0.0


@dataclass(frozen=True)
class Patience:
    """What follows from a long wait.

    Args:
        seconds: for how long the wait may last; None where this group's state isn't the job's, so that others
            that have it are worth any wait.
        exchange_seconds: time limit of an exchange to which all groups have come.
        late: is called with the places of groups that do not come, and with none once they have.
        broken: is called when an exchange to which all have come does not end.
    """

    seconds: Callable[[], float | None]
    exchange_seconds: float
    late: Callable[[Sequence[int]], None]
    broken: Callable[[], None]


class LongWait(threading.Thread):
    """One wait, from the moment on in which it has become a long one, to the end of a `with` block.

    Args:
        place: of this process's group in the version.
        open_store: makes a store connection of the version.
    """

    def __init__(self, place: int, size: int, open_store: Callable[[], Store], patience: Patience) -> None:
        super().__init__(name="dlr-replicas-wait", daemon=True)
        self._place, self._size = place, size
        self._open_store = open_store
        self._patience = patience
        self._over = threading.Event()
        self._is_teller = False
        self._teller = ""
        """Key of the number of processes that do what this one may do."""
        self._late: list[int] = []

    def __enter__(self) -> None:
        self.start()

    def __exit__(self, *_: Any) -> None:
        self._over.set()

    def run(self) -> None:
        try:
            store = self._open_store()
            store.add(_waiting(self._place), 1)
            self._watch(store)
            store.add(_waiting(self._place), -1)
            if self._is_teller:
                if self._late:
                    self._patience.late(())
                store.add(self._teller, -1)  # last, so that what the next one names is not taken back
        except Exception as error:  # the version is over, or its lead cannot be reached
            logger.debug("which other groups wait cannot be seen: %s", error)

    def _watch(self, store: Store) -> None:
        patience = self._patience.seconds()
        pause = self._patience.exchange_seconds if patience is None else patience
        self._teller = TELLERS[patience is not None]
        waited, due = QUIET_SECONDS, pause
        while not self._over.wait(TICK_SECONDS):
            waited += TICK_SECONDS
            if waited < due:
                continue
            due = waited + pause
            if not self._may_look(store):
                continue
            late = [place for place in range(self._size) if store.add(_waiting(place), 0) <= 0]
            if late and patience is not None and late != self._late:
                self._late = late
                self._patience.late(late)
            elif not late and waited >= self._patience.exchange_seconds:
                self._patience.broken()

    def _may_look(self, store: Store) -> bool:
        if not self._is_teller:
            self._is_teller = store.add(self._teller, 1) == 1
            if not self._is_teller:
                store.add(self._teller, -1)
        return self._is_teller


def _waiting(place: int) -> str:
    """Return the key of the number of a group's processes that wait."""
    return f"waiting/{place}"


def wait_for(
    changed: threading.Condition,
    is_over: Callable[[], T | None],
    long: Callable[[], AbstractContextManager[Any]],
) -> T:
    """Return what `is_over` returns once it is true. A long wait is for other groups, so it is no hang.

    Args:
        changed: is notified of what may end the wait, and is held while `is_over` is called.
        long: makes the context of a wait that has become long.
    """
    with changed:
        found = changed.wait_for(is_over, QUIET_SECONDS)
    if found:
        return found
    with long():
        while not found:
            with progress.busy(BUSY_SECONDS), changed:
                found = changed.wait_for(is_over, BUSY_SECONDS / 2)
    return found
