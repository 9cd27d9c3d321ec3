"""The agent's eyes: a thread that follows one object, and wakes the agent when what matters in it changes.

List, then watch from there; a watch that ends goes on from the last resourceVersion (bookmarks keep it
young); 410 means list again. Nothing here gives up: without the API server the last view stays true, and
training goes on.
"""

from __future__ import annotations

import contextlib
import logging
import os
import random
import threading
import time
import weakref
from collections.abc import Callable, Iterator, Mapping
from typing import Any, Generic, TypeVar

from agent.api import GROUP_PATH, ApiClient, ApiError, GoneError, UnavailableError, retrying
from agent.complaints import Complaints

logger = logging.getLogger(__name__)

WATCH_SECONDS = 240.0
"""How long a watch may last; the server ends it then. Varied, so that a job's agents do not renew at once."""

IDLE_MARGIN_SECONDS = 15.0
"""A watch that is silent this much longer than it may last is dead."""

MAX_WAIT_SECONDS = 5.0

View = TypeVar("View")


class Watcher(threading.Thread, Generic[View]):
    """Follows one object. `fileno()` becomes readable with every change; `view()` is the newest state.

    Args:
        resource: such as `elasticjobs`.
        parse: what matters in the object; only changes of that are changes.
        missing: what stands for an object that is not there (any more).
    """

    def __init__(
        self,
        api: ApiClient,
        resource: str,
        namespace: str,
        name: str,
        *,
        parse: Callable[[Mapping[str, Any]], View],
        missing: View,
        watch_seconds: float = WATCH_SECONDS,
    ) -> None:
        super().__init__(name=f"dlr-watch-{resource}", daemon=True)
        self._api = api
        self._path = f"{GROUP_PATH}/namespaces/{namespace}/{resource}"
        self._query = {"fieldSelector": f"metadata.name={name}"}
        self._parse = parse
        self._missing = missing
        self._watch_seconds = watch_seconds
        self._wake_fd = os.eventfd(0, os.EFD_NONBLOCK | os.EFD_CLOEXEC)
        weakref.finalize(self, os.close, self._wake_fd)
        self._view: View | None = None
        self._resource_version: str | None = None
        self._stop_event = threading.Event()
        self._what = f"{resource} {namespace}/{name}"
        self._complaints = Complaints(logger, f"follow {self._what}")

    def fileno(self) -> int:
        return self._wake_fd

    def view(self) -> View | None:
        """None before the first answer of the API server."""
        return self._view

    def take(self) -> View | None:
        """The newest view; `fileno()` is readable again only after the next change."""
        with contextlib.suppress(BlockingIOError):
            os.eventfd_read(self._wake_fd)
        return self._view

    def stop(self) -> None:
        """Without waiting: the thread may sit in a read until its watch ends. `fileno()` becomes readable."""
        self._stop_event.set()
        os.eventfd_write(self._wake_fd, 1)

    def run(self) -> None:
        retry = retrying(
            self._stop_event, max_wait_seconds=MAX_WAIT_SECONDS, before_sleep=self._complaints.failed
        )
        while not self._stop_event.is_set():
            try:
                retry(self._list_and_watch)
            except ApiError:
                return  # asked to stop

    def _list_and_watch(self) -> None:
        """One watch; returns if it brought something before it ended, so that waits start small again."""
        started_at, events = time.monotonic(), 0
        try:
            if self._resource_version is None:
                self._list()
            self._complaints.succeeded()
            for event in self._watch(self._resource_version or ""):
                self.feed(event)
                events += 1
                if self._stop_event.is_set():
                    return
        except GoneError:
            self._resource_version = None
        except UnavailableError:
            if not events:
                raise
        except (KeyError, TypeError, ValueError) as error:
            self._resource_version = None
            raise UnavailableError(0, f"the answer makes no sense: {error!r}") from error
        if not events and time.monotonic() - started_at < 1.0:
            raise UnavailableError(0, "the server ends watches at once")

    def _watch(self, resource_version: str) -> Iterator[dict[str, Any]]:
        seconds = self._watch_seconds * random.uniform(0.75, 1.25)
        query = {
            **self._query,
            "resourceVersion": resource_version,
            "allowWatchBookmarks": "true",
            "timeoutSeconds": str(int(seconds)),
        }
        return self._api.watch(self._path, query, idle_timeout_seconds=seconds + IDLE_MARGIN_SECONDS)

    def _list(self) -> None:
        answer = self._api.get(self._path, self._query)
        items = answer.get("items") or []
        self._resource_version = str(answer["metadata"]["resourceVersion"])
        self._show(self._parse(items[0]) if items else self._missing)

    def feed(self, event: Mapping[str, Any]) -> None:
        """Take in one watch event."""
        kind, thing = event.get("type"), event.get("object") or {}
        if kind == "ERROR":
            code = int(thing.get("code") or 500)
            message = str(thing.get("message") or "the watch failed")
            raise GoneError(code, message) if code == 410 else UnavailableError(code, message)
        self._resource_version = str(thing["metadata"]["resourceVersion"])
        if kind == "DELETED":
            logger.info("%s was deleted", self._what)
            self._show(self._missing)
        elif kind != "BOOKMARK":
            self._show(self._parse(thing))

    def _show(self, view: View) -> None:
        if view != self._view:
            self._view = view
            os.eventfd_write(self._wake_fd, 1)
