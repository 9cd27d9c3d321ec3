"""Reads a view repeatedly while a page shows it, at a low load, and through outages."""

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
"""Largest share of one core's time for reading: a large job is read less often."""
MOST_WAIT_SECONDS = 30.0
TROUBLE_WAIT_SECONDS = 3.0


@dataclass(frozen=True)
class Update:
    number: int
    body: bytes
    """JSON: `page`, the newest page, or null; `trouble`, why there is no newer one; `at`, the time."""


class Feed:
    """Reads a view in a thread while it has subscribers, and passes on the newest page."""

    def __init__(self, view: View) -> None:
        self.view = view
        self._subscribers = 0
        self._changed = asyncio.Condition()
        self._newest: Update | None = None
        self._reader: asyncio.Task[None] | None = None
        self._reading: Future[tuple[float, bytes | None, str | None]] | None = None
        """The last reading, whose subscribers may be gone."""
        self._number = 0
        self._logged = ""
        """The trouble whose traceback was logged last."""

    async def updates(self) -> AsyncGenerator[Update]:
        """Yield the newest update, and each later one; a slow subscriber misses some."""
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
                self._newest = None  # a later subscriber must not get an old page

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
            page: bytes | None = orjson.dumps(self.view.read())  # null for infinite values, which JSON lacks
            trouble = None
        except ApiError as failed:
            page, trouble = None, f"{failed}"
        except Exception as defect:
            page = None
            trouble = f"dlr cannot make this page ({type(defect).__name__}: {defect}). Please report it."
            if trouble != self._logged:  # the page is built every few seconds
                LOG.exception("a page cannot be made")
                self._logged = trouble
        return time.thread_time() - began, page, trouble


def pause_seconds(cpu_seconds: float, took_seconds: float, *, in_trouble: bool) -> float:
    """Return the pause until the next reading.

    Readings start every INTERVAL_SECONDS, or less often by SHARE. Requests take at most half of the time,
    however slowly the API server answers.

    Args:
        cpu_seconds: CPU time of the last reading.
        took_seconds: duration of the last reading, including its waits.
    """
    if in_trouble:
        return TROUBLE_WAIT_SECONDS
    period = max(INTERVAL_SECONDS, cpu_seconds / SHARE)
    return min(MOST_WAIT_SECONDS, max(period - took_seconds, took_seconds))


def _body(page: bytes, trouble: str | None) -> bytes:
    at = json.dumps({"trouble": trouble, "at": time.time()}).encode()
    return at[:-1] + b', "page": ' + page + b"}"


async def in_thread(work: Callable[[], Result]) -> Result:
    """Run a function in a thread; return its result, or raise its error."""
    return await asyncio.wrap_future(thread_of(work))


def thread_of(work: Callable[[], Result]) -> Future[Result]:
    """Start a function in a daemon thread, so that Ctrl-C need not wait for an answer of a server."""
    done = Future[Result]()
    done.set_running_or_notify_cancel()  # a cancelled caller does not cancel it

    def run() -> None:
        try:
            done.set_result(work())
        except BaseException as raised:
            done.set_exception(raised)

    threading.Thread(target=run, name="dlr-dashboard", daemon=True).start()
    return done
