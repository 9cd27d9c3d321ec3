"""Work queue between watch events and reconcilers.

A key is in the queue at most once, and in work at most once: if it is added while in work, it waits until
that is done. Failed keys return after a wait that doubles per key; a delayed key keeps the earliest of the
requested times. Namespaces take turns, and so do the flows in a namespace. One event loop, no locks.
"""

from __future__ import annotations

import asyncio
import heapq
import itertools
import logging
from collections.abc import Callable, Hashable, Iterable
from typing import Generic, NamedTuple, TypeVar

from controller import clock
from controller.api.fairness import FairQueue, Flow
from controller.queue.metrics import QueueMetricsObserver

log = logging.getLogger(__name__)

BACKOFF_BASE_SECONDS = 0.005
BACKOFF_CAP_SECONDS = 60.0
"""Longest back-off, so that work resumes within a minute after an outage of a webhook or quota."""
READY_AT_ONCE = 500
"""Keys that are made ready before other tasks get a turn."""

K = TypeVar("K", bound=Hashable)
SecondsLeft = Callable[[], float]
"""Called when a delay is over: returns how much longer the key can wait; 0 or less if it cannot."""


class QueueShutDown(Exception):
    """There is no more work, and there will be none."""


class _Due(NamedTuple, Generic[K]):
    at: float
    """Time on the monotonic clock."""
    number: int
    """Tie-breaker among entries of the same time."""
    key: K
    seconds_left: SecondsLeft | None


class WorkQueue(Generic[K]):
    """Queue of one controller; only `get` waits."""

    def __init__(
        self,
        *,
        observer: QueueMetricsObserver | None = None,
        flow_of: Callable[[K], Flow] | None = None,
        goes_first: Callable[[str], bool] | None = None,
    ) -> None:
        """
        Args:
            flow_of: returns the flow of a key; by default each key is its own flow, without a namespace.
            goes_first: returns whether the keys of a namespace come before those of others.
        """
        self._observer = observer
        self._flow_of: Callable[[K], Flow] = flow_of or _own_flow
        self._ready: FairQueue[K] = FairQueue(goes_first)
        self._dirty: dict[K, float] = {}
        """Keys that need work, with the time since when: those in `_ready`, and those in work that were added
        again."""
        self._working: dict[K, float] = {}
        self._failures: dict[K, int] = {}
        self._delayed: dict[K, _Due[K]] = {}
        """Current entry of `_due` for each key; other entries there are obsolete."""
        self._due: list[_Due[K]] = []
        self._order = itertools.count()
        self._timer: asyncio.TimerHandle | None = None
        self._shut_down = False
        self._wake = asyncio.Event()

    def __len__(self) -> int:
        """Return the number of keys ready for work."""
        return len(self._ready)

    def add(self, key: K) -> None:
        """Add `key` for work as soon as possible, which replaces any delayed request for it."""
        if self._shut_down:
            return
        self._delayed.pop(key, None)
        if key in self._dirty:
            return
        self._dirty[key] = clock.monotonic()
        if key not in self._working:
            self._make_ready(key)
        elif self._observer:
            self._observer.added(len(self._ready))

    def add_all(self, keys: Iterable[K]) -> None:
        """Add all keys, without blocking the event loop for long."""
        more = iter(keys)
        for key in itertools.islice(more, READY_AT_ONCE):
            self.add(key)
        following = next(more, None)
        if following is not None:
            rest = itertools.chain((following,), more)
            asyncio.get_running_loop().call_soon(self.add_all, rest)

    def add_after(self, key: K, delay_seconds: float, seconds_left: SecondsLeft | None = None) -> None:
        """Add `key` for work after that time; of several such requests the earliest counts."""
        if self._shut_down:
            return
        if delay_seconds <= 0:
            self.add(key)
            return
        due = clock.monotonic() + delay_seconds
        if key in self._dirty and key not in self._working:
            return
        earlier = self._delayed.get(key)
        if earlier is None or due < earlier.at:
            entry = _Due(due, next(self._order), key, seconds_left)
            self._delayed[key] = entry
            heapq.heappush(self._due, entry)
            self._compact()
            if self._due[0] is entry:
                self._arm()

    def add_rate_limited(self, key: K, at_least_seconds: float = 0.0) -> None:
        """Add `key` again after its back-off, which doubles until `forget`.

        A longer wait is honoured up to the longest back-off.
        """
        failures = self._failures.get(key, 0)
        self._failures[key] = failures + 1
        if self._observer:
            self._observer.retried()
        backoff_seconds = min(BACKOFF_CAP_SECONDS, BACKOFF_BASE_SECONDS * 2.0 ** min(failures, 60))
        self.add_after(key, max(backoff_seconds, min(at_least_seconds, BACKOFF_CAP_SECONDS)))

    def forget(self, key: K) -> None:
        """Reset the back-off of `key`."""
        self._failures.pop(key, None)

    def failures(self, key: K) -> int:
        return self._failures.get(key, 0)

    async def get(self) -> K:
        """Return the next key, which is in work until `done`. Raises QueueShutDown at the end."""
        while not self._ready:
            if self._shut_down:
                raise QueueShutDown
            await self._wake.wait()
        key = self._ready.pop()
        if not self._ready and not self._shut_down:
            self._wake.clear()
        now = clock.monotonic()
        wanted_since = self._dirty.pop(key)
        self._working[key] = now
        if self._observer:
            self._observer.taken(len(self._ready), now - wanted_since)
        return key

    def done(self, key: K) -> None:
        """End the work on `key`; if it was added meanwhile, it is ready again."""
        started = self._working.pop(key)
        if self._observer:
            self._observer.finished(clock.monotonic() - started)
        if key in self._dirty:
            self._make_ready(key)

    def shut_down(self) -> None:
        """Accept no more keys, and drop waiting ones (the successor lists everything anyway)."""
        self._shut_down = True
        self._ready.clear()
        self._dirty.clear()
        self._delayed.clear()
        self._due.clear()
        if self._timer is not None:
            self._timer.cancel()
        self._wake.set()

    def working_seconds(self) -> list[float]:
        """Return how long each key in work has been there. Any thread may call it."""
        now = clock.monotonic()
        return [now - started for started in list(self._working.values())]

    def flow_of(self, key: K) -> Flow:
        """Return the flow of the key; its own flow if `flow_of` fails."""
        try:
            namespace, name = self._flow_of(key)
            hash((namespace, name))
        except Exception:
            log.warning("cannot tell the flow of %s", key, exc_info=True)
            return _own_flow(key)
        return namespace, name

    def _make_ready(self, key: K) -> None:
        self._ready.push(self.flow_of(key), key)
        self._wake.set()
        if self._observer:
            self._observer.added(len(self._ready))

    def _compact(self) -> None:
        """Remove obsolete entries, which stay in the heap until due, if there are many."""
        if len(self._due) > 2 * len(self._delayed) + 64:
            self._due = [entry for entry in self._due if self._delayed.get(entry.key) is entry]
            heapq.heapify(self._due)

    def _arm(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        if self._due:
            delay_seconds = max(0.0, self._due[0].at - clock.monotonic())
            self._timer = asyncio.get_running_loop().call_later(delay_seconds, self._fire)

    def _fire(self) -> None:
        now = clock.monotonic()
        for _ in range(READY_AT_ONCE):
            if not self._due or self._due[0].at > now:
                break
            entry = heapq.heappop(self._due)
            if self._delayed.get(entry.key) is entry:
                del self._delayed[entry.key]
                self.add_after(entry.key, self._seconds_left(entry), entry.seconds_left)
        self._arm()

    def _seconds_left(self, entry: _Due[K]) -> float:
        if entry.seconds_left is None:
            return 0.0
        try:
            return entry.seconds_left()
        except Exception:
            log.warning("cannot tell how long %s can wait", entry.key, exc_info=True)
            return 0.0


def _own_flow(key: Hashable) -> Flow:
    return None, key
