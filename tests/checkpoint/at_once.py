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
    leaving,
    memory,
    own_slot,
    persistence,
    sharing,
    surroundings,
)
from dlr.checkpoint.saver import try_to_persist
from dlr.checkpoint.sharing import Request
from tests.cli.scripted import Clock


class AtOnce(Executor):
    """Has done what it is given when `submit` returns."""

    def __init__(self, *_: object) -> None:
        pass

    def submit(self, work: Callable[..., Any], /, *arguments: Any, **options: Any) -> Future[Any]:
        future: Future[Any] = Future()
        try:
            future.set_result(work(*arguments, **options))
        except Exception as error:
            future.set_exception(error)
        return future


class SaverHere:
    """A saver that is no process of its own."""

    runs, has_saved, is_abandoned = True, False, False

    def start(self) -> None: ...

    def save(self, request: Request, has_read: Callable[[], None]) -> str | None:
        self.has_saved = True
        return try_to_persist(request, has_read)

    def activity(self) -> tuple[bytes, ...]:
        return ()

    def abandon(self) -> None:
        self.is_abandoned = True

    def close(self) -> None: ...


def begun(run: Callable[[], Any]) -> Future[Any]:
    return AtOnce().submit(run)


def begin(run: Callable[..., None], *arguments: object) -> bool:
    run(*arguments)
    return True


def play(monkeypatch: pytest.MonkeyPatch) -> Clock:
    """Have it all done at once, by a clock that moves by sleeping alone."""
    clock = Clock()
    for module in (progress, checkpointer, choosing, leaving, persistence, sharing, surroundings):
        monkeypatch.setattr(module, "time", clock)
    for module in (memory, own_slot):
        monkeypatch.setattr(module, "ThreadPoolExecutor", AtOnce)
    monkeypatch.setattr(choosing, "_begin", begun)
    monkeypatch.setattr(persistence, "_start_thread", begin)
    monkeypatch.setattr(persistence, "Saver", SaverHere)
    return clock
