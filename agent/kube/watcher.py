"""A thread that follows one object of the API server, and wakes the agent when relevant parts of it change.

It lists, and watches from there. When a watch ends, another begins from the last resourceVersion, which
bookmarks keep recent. It lists again when that version is too old (410), and when the server ends a watch at
once, as during a shutdown. It never gives up: without the API server the last view stays in force, and
training goes on.
"""

from __future__ import annotations

import contextlib
import logging
import os
import random
import signal
import threading
import time
import weakref
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any, Generic, TypeVar

from agent.kube.api import GROUP_PATH, AgentApi
from agent.kube.retry import Warnings, retrying
from controller.errors import ApiError, Gone, SilentWatch, Unavailable

logger = logging.getLogger(__name__)

WATCH_SECONDS = 240.0
"""Length of a watch, which the server then ends. Varied, so that a job's agents do not renew all at once."""

IDLE_SECONDS = 75.0
"""Time without data after which a watch is opened again. Kubernetes sends a bookmark about every minute. A
proxy that has lost its server sends nothing, but may still answer keep-alives."""

SHORT_SECONDS = 1.0
"""Length below which a watch without events counts as failed, as in client-go."""

MAX_WAIT_SECONDS = 5.0
PIPE_BYTES = 65536
"""Capacity of a pipe on Linux (pipe(7))."""

View = TypeVar("View")


class Watcher(threading.Thread, Generic[View]):
    """Follows one object. `fileno()` becomes readable with every change; `view()` is the newest state.

    Args:
        api: the API server.
        resource: plural name of the kind, such as `elasticworlds`.
        namespace: namespace of the object.
        name: name of the object.
        parse: returns the view of an object; only changes of the view count.
        missing: view of a missing object.
        watch_seconds: approximate length of one watch.
        stop: event that ends the thread.
        monotonic: clock of the waits of `stop` and of the API server.
    """

    def __init__(
        self,
        api: AgentApi,
        resource: str,
        namespace: str,
        name: str,
        *,
        parse: Callable[[Mapping[str, Any]], View],
        missing: View,
        watch_seconds: float = WATCH_SECONDS,
        stop: threading.Event | None = None,
        monotonic: Callable[[], float] = time.monotonic,
    ) -> None:
        super().__init__(name=f"dlr-watch-{resource}", daemon=True)
        self._api = api
        self._path = f"{GROUP_PATH}/namespaces/{namespace}/{resource}"
        self._query = {"fieldSelector": f"metadata.name={name}"}
        self._parse = parse
        self._missing = missing
        self._watch_seconds = watch_seconds
        self._news_fd, self._wake_fd = os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC)
        # Not at exit, when the thread may still write to it; the kernel closes it then.
        for descriptor in (self._news_fd, self._wake_fd):
            weakref.finalize(self, os.close, descriptor).atexit = False
        self._view: View | None = None
        self._resource_version: str | None = None
        self._on_change: Callable[[], None] = lambda: None
        self._stop_event = stop or threading.Event()
        self._monotonic = monotonic
        self._what = f"{resource} {namespace}/{name}"
        self._warnings = Warnings(logger, f"follow {self._what}")

    def fileno(self) -> int:
        """Return the descriptor to poll for reading."""
        return self._news_fd

    @contextlib.contextmanager
    def woken_by_signals(self) -> Iterator[None]:
        """Make `fileno()` readable at each signal that has a handler, in a main thread of our own.

        Handlers run there, between two bytecodes. A signal that comes just before a system call, or that the
        kernel gives to another thread, as it does after a SIGSTOP, would otherwise end no wait.
        """
        before = signal.set_wakeup_fd(self._wake_fd, warn_on_full_buffer=False)
        try:
            yield
        finally:
            signal.set_wakeup_fd(before)

    def view(self) -> View | None:
        """Return the newest view; None before the first answer of the API server."""
        return self._view

    def take(self) -> View | None:
        """Return the newest view, and make `fileno()` unreadable until the next change."""
        with contextlib.suppress(BlockingIOError):
            os.read(self._news_fd, PIPE_BYTES)
        return self._view

    def read(self) -> View:
        """Read the object from the API server, which may be newer than the watch's.

        Raises:
            ApiError: the server does not answer.
        """
        return self._parsed(self._api.get(self._path, self._query))

    def call_at_changes(self, on_change: Callable[[], None]) -> None:
        """Set a function that this thread calls at every change; it must not block or raise."""
        self._on_change = on_change

    def stop(self) -> None:
        """End the thread, without waiting: it may be in a read until its watch ends.

        `fileno()` becomes readable.
        """
        self._stop_event.set()
        self._wake()

    def run(self) -> None:
        retry = retrying(self._stop_event, self._warnings, max_wait_seconds=MAX_WAIT_SECONDS)
        while not self._stop_event.is_set():
            try:
                retry(self._list_and_watch)
            except Exception:
                return  # stopped

    def _list_and_watch(self) -> None:
        """Follow the object for one watch.

        Raises:
            ApiError: it failed, so the next attempt has to wait.
        """
        events = 0
        try:
            version = self._resource_version or self._list()
            watch = self._open_watch(version)
            self._warnings.succeeded()
            opened_at = self._monotonic()
            for event in watch:
                self.feed(event)
                events += 1
                if self._stop_event.is_set():
                    return
        except SilentWatch:
            return
        except Unavailable:
            if not events:
                raise
        except Exception as error:
            if isinstance(error, Gone) or not isinstance(error, ApiError):
                # Also after a defect of ours, which must not make us miss a state of the object.
                self._resource_version = None
            raise
        if not events and self._monotonic() - opened_at < SHORT_SECONDS:
            self._resource_version = None
            self._api.reconnect()
            raise Unavailable("The API server ends watches at once.")

    def _open_watch(self, resource_version: str) -> Iterable[dict[str, Any]]:
        seconds = self._watch_seconds * random.uniform(0.75, 1.25)
        query = {
            **self._query,
            "resourceVersion": resource_version,
            "timeoutSeconds": str(int(seconds)),
        }
        return self._api.watch(self._path, query, idle_timeout_seconds=IDLE_SECONDS)

    def _list(self) -> str:
        """Read the object, and return the version to watch from."""
        answer = self._api.get(self._path, self._query)
        version = self._resource_version = str(answer["metadata"]["resourceVersion"])
        self._show(self._parsed(answer))
        return version

    def _parsed(self, answer: Mapping[str, Any]) -> View:
        items = answer.get("items") or []
        return self._parse(items[0]) if items else self._missing

    def feed(self, event: Mapping[str, Any]) -> None:
        """Process one event of a watch."""
        kind, thing = event["type"], event["object"]
        self._resource_version = str(thing["metadata"]["resourceVersion"])
        if kind == "DELETED":
            logger.info("%s was deleted", self._what)
            self._show(self._missing)
        elif kind != "BOOKMARK":
            self._show(self._parse(thing))

    def _show(self, view: View) -> None:
        if view != self._view:
            self._view = view
            self._wake()
            self._on_change()

    def _wake(self) -> None:
        with contextlib.suppress(BlockingIOError):  # it is full, so it is readable
            os.write(self._wake_fd, b"\0")
