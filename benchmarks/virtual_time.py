"""Event loop with a clock that counts only the controller's computing.

Time advances with the controller's CPU seconds, and jumps when there is nothing to do. So long reconciles
of a job are as few as on a real clock, minutes of virtual time pass in seconds, and other programs on the
machine matter little. The computing of API server, kubelets and agents happens `outside`, where the clock
stops.
"""

from __future__ import annotations

import asyncio
import gc
import selectors
import threading
import time
from collections.abc import Callable, Coroutine, Iterator
from concurrent.futures import Executor
from contextlib import contextmanager
from typing import Any, cast

THREADS_SECONDS = 0.002
"""Real time to wait for the controller's threads before polling the loop again."""


class Deadlock(RuntimeError):
    """Everything waits, and no timer is set."""


class _Selector(selectors.SelectSelector):
    """Selector that never waits in real time, except for threads; it measures how long the loop did not poll.

    This excludes Python's garbage collector, which here also visits the objects of API server and agents.
    """

    def __init__(self) -> None:
        super().__init__()
        self.skipped_seconds = 0.0
        self.outside_seconds = 0.0
        self.outside_since: float | None = None
        self.longest_seconds = 0.0
        self.threads = 0
        self._resumed = 0.0
        self._thread = threading.get_ident()
        self._clock = time.pthread_getcpuclockid(self._thread)
        self._collecting_since = 0.0
        gc.callbacks.append(self._around_collections)

    def _around_collections(self, phase: str, _info: dict[str, int]) -> None:
        if threading.get_ident() != self._thread or self.outside_since is not None:
            return
        if phase == "start":
            self._collecting_since = self.computed_seconds()
        else:
            self._resumed += self.computed_seconds() - self._collecting_since

    def thread_seconds(self) -> float:
        """Return the CPU seconds of the loop's thread, from any thread."""
        return time.clock_gettime(self._clock)

    def computed_seconds(self) -> float:
        """Return the CPU seconds of the loop's thread, without those outside."""
        now = self.thread_seconds() if self.outside_since is None else self.outside_since
        return now - self.outside_seconds

    def select(self, timeout: float | None = None) -> list[Any]:
        self.note_stretch()
        try:
            return self._polled(timeout)
        finally:
            self._resumed = self.computed_seconds()

    def note_stretch(self) -> None:
        """End the current stretch, and begin another."""
        now = self.computed_seconds()
        self.longest_seconds = max(self.longest_seconds, now - self._resumed)
        self._resumed = now

    def _polled(self, timeout: float | None) -> list[Any]:
        events = super().select(0)
        if events or timeout == 0:
            return events
        if self.threads:
            return super().select(THREADS_SECONDS)
        if timeout is None:
            raise Deadlock
        self.skipped_seconds += timeout
        return events


class VirtualLoop(asyncio.SelectorEventLoop):
    def __init__(self) -> None:
        self._meter = _Selector()
        super().__init__(self._meter)

    def time(self) -> float:
        return self._meter.skipped_seconds + self._meter.computed_seconds()

    @property
    def outside_seconds(self) -> float:
        return self._meter.outside_seconds

    @contextmanager
    def outside(self) -> Iterator[None]:
        """Stop the clock around the computing of other machines."""
        meter = self._meter
        if meter.outside_since is not None:
            yield
            return
        meter.outside_since = meter.thread_seconds()
        try:
            yield
        finally:
            meter.outside_seconds += meter.thread_seconds() - meter.outside_since
            meter.outside_since = None

    def longest_stretch_seconds(self) -> float:
        """Return the longest CPU time without a poll of the loop since the last call."""
        self._meter.note_stretch()
        longest, self._meter.longest_seconds = self._meter.longest_seconds, 0.0
        return longest

    def run_in_executor(  # type: ignore[override]
        self, executor: Executor | None, func: Callable[..., Any], *args: Any
    ) -> asyncio.Future[Any]:
        future = super().run_in_executor(executor, func, *args)
        self._meter.threads += 1
        future.add_done_callback(lambda _: self._thread_ended())
        return future

    async def shutdown_default_executor(self, *patience: float | None) -> None:  # type: ignore[override, unused-ignore]
        """Count the shutdown itself as a thread: it waits for the others in its own thread, from Python 3.12
        on with a limit."""
        self._meter.threads += 1
        await super().shutdown_default_executor(*patience)  # type: ignore[arg-type, unused-ignore]
        self._meter.threads -= 1

    def _thread_ended(self) -> None:
        self._meter.threads -= 1


_running: list[VirtualLoop] = []
"""Running loop of this process, also for its threads and signal handlers."""


def running_loop() -> VirtualLoop:
    return _running[-1]


def run(coroutine: Coroutine[Any, Any, Any]) -> Any:
    """Run a coroutine in virtual time, like `asyncio.run`."""
    with asyncio.Runner(loop_factory=VirtualLoop) as runner:
        _running.append(cast(VirtualLoop, runner.get_loop()))
        try:
            return runner.run(coroutine)
        finally:
            _running.pop()
