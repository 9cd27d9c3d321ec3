"""Tells three kinds of tests apart, and holds each to its own.

A test without a marker is *pure*: values decide it. A *played* one (`pytest.mark.played`) runs agents, controllers or
groups in one process, over a false network and a false clock. A *real* one (`pytest.mark.real`) has processes, sockets,
threads or clusters. A test that is not real fails, by this plugin, as soon as its thread

* starts a thread or a process, or opens a socket;
* sleeps, waits for another thread or for a descriptor, or reads the machine's clock from our code by `time`
  (nothing can watch `datetime.now`);
* waits, in asyncio, for what nobody can bring any more.

An event loop of such a test has a clock of its own, which moves only when nobody can move.
"""

from __future__ import annotations

import _posixsubprocess
import asyncio
import functools
import os
import posix
import select
import selectors
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Generator
from typing import Any

import pytest

OURS = frozenset(
    (
        *("agent", "benchmarks", "controller", "crds", "deploy", "dlr", "e2e", "healthcheck", "localcluster"),
        *("reconcilers", "release", "simulator", "tests"),
    )
)
REAL: tuple[tuple[Any, str, str], ...] = (
    (_posixsubprocess, "fork_exec", "starts a process"),
    (os, "execve", "starts a process"),
    (os, "fork", "starts a process"),
    (os, "posix_spawn", "starts a process"),
    (os, "system", "starts a process"),
    (select, "epoll", "waits for a descriptor"),
    (select, "poll", "waits for a descriptor"),
    (socket.socket, "__init__", "opens a socket"),
    (subprocess.Popen, "__init__", "starts a process"),
    (threading.Condition, "wait", "waits for another thread"),
    (threading.Thread, "start", "starts a thread"),
    (time, "sleep", "sleeps"),
)
"""What only a real test may call."""
CLOCKS = ("monotonic", "monotonic_ns", "time", "time_ns", "perf_counter", "perf_counter_ns")


class NotPlayed(pytest.fail.Exception):
    """A test that is not marked `real` did something real. No `except Exception` of the product swallows it."""


class Deadlock(pytest.fail.Exception):
    """Everybody waits, and no timer is set."""


class _Guard:
    """The test that runs, as long as it must do nothing real."""

    def __init__(self) -> None:
        self.active = False
        self.thread = threading.get_ident()
        self.found: list[str] = []

    def refuse(self, what: str) -> None:
        """Raise NotPlayed, unless another thread does it, an import, or a loop that opens what wakes it."""
        if not self.active or threading.get_ident() != self.thread or _is_excused():
            return
        self.active = False
        try:
            where = _place()
        finally:
            self.active = True
        self.found.append(f"{what} at {where}")
        raise NotPlayed(f"{what} at {where}: mark it `real`, or pass in what it waits for")


GUARD = _Guard()


def _is_excused() -> bool:
    """Whether a module does it that is imported, or an event loop that makes the sockets by which threads wake it.

    Which test is the first to import a module depends on which others have run before it.
    """
    frame = sys._getframe(2)
    while frame is not None:
        code = frame.f_code
        if code.co_name == "_make_self_pipe" or code.co_filename == "<frozen importlib._bootstrap>":
            return True
        frame = frame.f_back  # type: ignore[assignment]
    return False


def _place() -> str:
    frame, place = sys._getframe(2), "?"
    while frame is not None:
        if _is_ours(frame) and frame.f_globals["__name__"] != __name__:
            return f"{frame.f_globals['__name__']}:{frame.f_lineno}"
        frame = frame.f_back  # type: ignore[assignment]
    return place


def _is_ours(frame: Any) -> bool:
    return str(frame.f_globals.get("__name__", "")).partition(".")[0] in OURS


def _watched(clock: Callable[[], Any]) -> Callable[[], Any]:
    @functools.wraps(clock)
    def read() -> Any:
        if GUARD.active and _is_ours(sys._getframe(1)):
            GUARD.refuse("reads the clock")
        return clock()

    return read


def _refused(function: Callable[..., Any], what: str) -> Callable[..., Any]:
    @functools.wraps(function)
    def call(*args: Any, **kwargs: Any) -> Any:
        if GUARD.active:
            GUARD.refuse(what)
        return function(*args, **kwargs)

    return call


class _Selector(selectors.SelectSelector):
    """Waits for no real time: the clock jumps to the next timer instead."""

    def __init__(self) -> None:
        super().__init__()
        self.skipped_seconds = 0.0

    def select(self, timeout: float | None = None) -> list[Any]:
        events = super().select(0)
        if events or timeout == 0:
            return events
        if timeout is None:
            raise Deadlock("everybody waits, and no timer is set")
        self.skipped_seconds += timeout
        return events


class PlayedLoop(asyncio.SelectorEventLoop):
    """An event loop whose clock moves only when nobody can move."""

    def __init__(self) -> None:
        self._played = _Selector()
        super().__init__(self._played)

    def time(self) -> float:
        return self._played.skipped_seconds


class _Policy(asyncio.DefaultEventLoopPolicy):
    def new_event_loop(self) -> asyncio.AbstractEventLoop:
        return PlayedLoop() if GUARD.active else super().new_event_loop()


def pytest_configure(config: pytest.Config) -> None:
    config.addinivalue_line("markers", "played: agents, controllers or groups over a false network and clock")
    config.addinivalue_line("markers", "real: processes, sockets, threads, clusters")
    config.addinivalue_line("markers", "named: a real scenario that a user would name, part of `make test`")
    for name in CLOCKS:
        setattr(time, name, _watched(getattr(time, name)))
    for owner, name, what in REAL:
        setattr(owner, name, _refused(getattr(owner, name), what))
    posix.system = os.system  # type: ignore[assignment]  # what pickles name
    asyncio.set_event_loop_policy(_Policy())


@pytest.hookimpl(wrapper=True, tryfirst=True)
def pytest_runtest_protocol(item: pytest.Item) -> Generator[None, Any, Any]:
    GUARD.found.clear()
    GUARD.active = item.get_closest_marker("real") is None
    try:
        return (yield)
    finally:
        GUARD.active = False


@pytest.hookimpl(wrapper=True)
def pytest_runtest_call(item: pytest.Item) -> Generator[None, Any, Any]:
    """Fail a test in which something caught the refusal."""
    result = yield
    if GUARD.found:
        raise NotPlayed("; ".join(dict.fromkeys(GUARD.found)))
    return result
