"""A view that is read again and again while somebody looks at it, gently and through outages."""

from __future__ import annotations

import asyncio
import json
import logging
import threading
import time
from collections.abc import AsyncGenerator, Callable
from concurrent.futures import Future
from dataclasses import dataclass
from typing import TypeVar

import orjson

from dlr.dashboard.reading import View
from dlr.kube.errors import ApiError

Result = TypeVar("Result")
LOG = logging.getLogger(__name__)

INTERVAL_SECONDS = 1.0
SHARE = 0.1
"""Of one core's time reading takes at most this much: a large job is read less often."""
MOST_WAIT_SECONDS = 30.0
TROUBLE_WAIT_SECONDS = 3.0


@dataclass(frozen=True)
class Update:
    number: int
    body: bytes
    """JSON: `page`, the last one there is, or null; `trouble`, why there is no newer one; `at`, its time."""


class Feed:
    """Reads a view in a thread, one at a time, while it has subscribers, and hands on the newest."""

    def __init__(self, view: View) -> None:
        self.view = view
        self._subscribers = 0
        self._changed = asyncio.Condition()
        self._newest: Update | None = None
        self._reader: asyncio.Task[None] | None = None
        self._reading: Future[tuple[float, bytes | None, str | None]] | None = None
        """The last reading; who has asked for it may be gone."""
        self._number = 0
        self._logged = ""
        """The trouble whose traceback was logged last."""

    async def updates(self) -> AsyncGenerator[Update]:
        """The newest, and each one after it; who is slow misses some."""
        self._subscribers += 1
        if self._reader is None:
            self._reader = asyncio.create_task(self._read_on())
        try:
            seen = 0
            while True:
                update = await self._newer_than(seen)
                seen = update.number
                yield update
        finally:
            self._subscribers -= 1
            if not self._subscribers and self._reader is not None:
                self._reader.cancel()
                self._reader = None
                self._newest = None  # who comes later is not shown what is old

    async def _newer_than(self, number: int) -> Update:
        async with self._changed:
            while self._newest is None or self._newest.number <= number:
                await self._changed.wait()
            return self._newest

    async def _read_on(self) -> None:
        page = b"null"
        while True:
            began = time.monotonic()
            while self._reading is not None and not self._reading.done():
                await asyncio.wrap_future(self._reading)
            self._reading = thread_of(self._read)
            cpu_seconds, read, trouble = await asyncio.wrap_future(self._reading)
            took_seconds = time.monotonic() - began
            page = read if read is not None else page
            body = _body(page, trouble)
            async with self._changed:
                self._number += 1
                self._newest = Update(self._number, body)
                self._changed.notify_all()
            await asyncio.sleep(pause_seconds(cpu_seconds, took_seconds, in_trouble=trouble is not None))

    def _read(self) -> tuple[float, bytes | None, str | None]:
        """Return, from a thread, the CPU seconds used, and the page as JSON or why there is none."""
        began = time.thread_time()
        try:
            page: bytes | None = orjson.dumps(self.view.read())  # null for what is infinite: JSON has none
            trouble = None
        except ApiError as failed:
            page, trouble = None, f"{failed}"
        except Exception as defect:
            page = None
            trouble = f"dlr cannot make this page ({type(defect).__name__}: {defect}). Please report it."
            if trouble != self._logged:  # it is made again every few seconds
                LOG.exception("a page cannot be made")
                self._logged = trouble
        return time.thread_time() - began, page, trouble


def pause_seconds(cpu_seconds: float, took_seconds: float, *, in_trouble: bool) -> float:
    """Until the next reading, after one that took so much CPU time and, with its waits, so long.

    From one reading's start to the next it is INTERVAL_SECONDS, or what SHARE asks for. The API server is
    asked for no more than half of the time, however long it takes to answer.
    """
    if in_trouble:
        return TROUBLE_WAIT_SECONDS
    period = max(INTERVAL_SECONDS, cpu_seconds / SHARE)
    return min(MOST_WAIT_SECONDS, max(period - took_seconds, took_seconds))


def _body(page: bytes, trouble: str | None) -> bytes:
    at = json.dumps({"trouble": trouble, "at": time.time()}).encode()
    return at[:-1] + b', "page": ' + page + b"}"


async def in_thread(work: Callable[[], Result]) -> Result:
    """Return the result of work in a thread, or raise what it raises."""
    return await asyncio.wrap_future(thread_of(work))


def thread_of(work: Callable[[], Result]) -> Future[Result]:
    """Begin work in a thread. It is a daemon: Ctrl-C need not wait until a server answers."""
    done = Future[Result]()
    done.set_running_or_notify_cancel()  # who gives up does not cancel it

    def run() -> None:
        try:
            done.set_result(work())
        except BaseException as raised:
            done.set_exception(raised)

    threading.Thread(target=run, name="dlr-dashboard", daemon=True).start()
    return done
