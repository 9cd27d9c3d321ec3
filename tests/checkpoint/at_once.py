"""What the threads and the saver of a training process do, done at once by the thread that asks for it."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import Executor, Future
from typing import Any

import pytest

from dlr import progress
from dlr.checkpoint import (
    checkpointer,
    choosing,
    last_save,
    leaving,
    memory,
    own_slot,
    persistence,
    sharing,
    surroundings,
)
from dlr.checkpoint.saver import try_to_persist
from dlr.checkpoint.sharing import SaveRequest
from tests.cli.scripted import Clock


class Gate:
    """Holds back what threads are given, in its order, while it is closed."""

    is_open = True

    def __init__(self) -> None:
        self._held: list[Callable[[], None]] = []

    def close(self) -> None:
        self.is_open = False

    def open(self) -> None:
        self.is_open = True
        while self._held:
            self._held.pop(0)()

    def submit(self, work: Callable[..., Any], *arguments: Any, **options: Any) -> Future[Any]:
        future: Future[Any] = Future()

        def act() -> None:
            try:
                future.set_result(work(*arguments, **options))
            except Exception as error:
                future.set_exception(error)

        self._held.append(act)
        if self.is_open:
            self.open()
        return future

    def begin(self, run: Callable[..., None], *arguments: object) -> bool:
        self.submit(run, *arguments)
        return True

    def executor(self, *_: object) -> Executor:
        made = Executor()
        made.submit = self.submit  # type: ignore[method-assign]
        return made


class SaverHere:
    """A saver that is no process of its own."""

    runs, has_saved, is_abandoned = True, False, False

    def start(self) -> None: ...

    def save(self, request: SaveRequest, has_read: Callable[[], None]) -> str | None:
        self.has_saved = True
        return try_to_persist(request, has_read)

    def activity(self) -> tuple[bytes, ...]:
        return ()

    def abandon(self) -> None:
        self.is_abandoned = True

    def close(self) -> None: ...


def play(monkeypatch: pytest.MonkeyPatch) -> tuple[Clock, Gate]:
    """Have it all done at once, by a clock that moves by sleeping alone."""
    clock, gate = Clock(), Gate()
    for module in (progress, checkpointer, choosing, last_save, leaving, persistence, sharing, surroundings):
        monkeypatch.setattr(module, "time", clock)
    for module in (memory, own_slot):
        monkeypatch.setattr(module, "ThreadPoolExecutor", gate.executor)
    monkeypatch.setattr(choosing, "_begin", gate.submit)
    monkeypatch.setattr(persistence, "_start_thread", gate.begin)
    monkeypatch.setattr(persistence, "Saver", SaverHere)
    return clock, gate
