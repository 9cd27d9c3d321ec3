"""An event loop whose clock jumps to the next timer: hours of back-off pass in milliseconds."""

import asyncio
import selectors
from collections.abc import Callable, Coroutine
from typing import Any


class Deadlock(AssertionError):
    """Everything waits and no timer is set: real time would not help either."""


class _JumpingSelector(selectors.SelectSelector):
    now = 0.0

    def select(self, timeout: float | None = None) -> list[Any]:
        events = super().select(0)
        if not events:
            if timeout is None:
                raise Deadlock
            self.now += timeout
        return events


class VirtualTimeLoop(asyncio.SelectorEventLoop):
    def __init__(self) -> None:
        self._jumping = _JumpingSelector()
        super().__init__(self._jumping)

    def time(self) -> float:
        return self._jumping.now

    def run_in_executor(self, executor: Any, func: Callable[..., Any], *args: Any) -> asyncio.Future[Any]:
        """At once: no timer jumps past what a thread has yet to do."""
        done = self.create_future()
        try:
            done.set_result(func(*args))
        except Exception as error:
            done.set_exception(error)
        return done


def run(coroutine: Coroutine[Any, Any, Any]) -> Any:
    """`asyncio.run` in virtual time, which starts at 0."""
    with asyncio.Runner(loop_factory=VirtualTimeLoop) as runner:
        return runner.run(coroutine)


def now() -> float:
    return asyncio.get_running_loop().time()
