"""The agent's eyes: one thread that follows the one ElasticJob, and wakes the agent when it changes.

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
from collections.abc import Mapping
from typing import Any

from agent.api import GROUP_PATH, ApiClient, ApiError, GoneError, UnavailableError, retrying
from agent.complaints import Complaints
from agent.world import JobView

logger = logging.getLogger(__name__)

WATCH_SECONDS = 240.0
"""How long a watch may last; the server ends it then. Varied, so that a job's agents do not renew at once."""

IDLE_MARGIN_SECONDS = 15.0
"""A watch that is silent this much longer than it may last is dead."""

MAX_WAIT_SECONDS = 5.0


class JobWatcher(threading.Thread):
    """Follows an ElasticJob. `fileno()` becomes readable with every change; `view()` is the newest state."""

    def __init__(self, api: ApiClient, namespace: str, job_name: str) -> None:
        super().__init__(name="dlr-watch", daemon=True)
        self._api = api
        self._path = f"{GROUP_PATH}/namespaces/{namespace}/elasticjobs"
        self._query = {"fieldSelector": f"metadata.name={job_name}"}
        self._wake_fd = os.eventfd(0, os.EFD_NONBLOCK | os.EFD_CLOEXEC)
        self._view: JobView | None = None
        self._resource_version: str | None = None
        self._stop_event = threading.Event()
        self._complaints = Complaints(logger, f"follow elasticjob {namespace}/{job_name}")

    def fileno(self) -> int:
        return self._wake_fd

    def view(self) -> JobView | None:
        """None before the first answer of the API server."""
        return self._view

    def take(self) -> JobView | None:
        """The newest view; `fileno()` is readable again only after the next change."""
        with contextlib.suppress(BlockingIOError):
            os.eventfd_read(self._wake_fd)
        return self._view

    def stop(self) -> None:
        """Without waiting: the thread may sit in a read, and dies with the process."""
        self._stop_event.set()

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
        if self._resource_version is None:
            self._list()
        self._complaints.succeeded()
        started_at, events = time.monotonic(), 0
        seconds = WATCH_SECONDS * random.uniform(0.75, 1.25)
        query = {
            **self._query,
            "resourceVersion": self._resource_version or "",
            "allowWatchBookmarks": "true",
            "timeoutSeconds": str(int(seconds)),
        }
        try:
            for event in self._api.watch(
                self._path, query, idle_timeout_seconds=seconds + IDLE_MARGIN_SECONDS
            ):
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
            raise UnavailableError(0, f"an event makes no sense: {error!r}") from error
        if not events and time.monotonic() - started_at < 1.0:
            raise UnavailableError(0, "the server ends watches at once")

    def _list(self) -> None:
        answer = self._api.get(self._path, self._query)
        items = answer.get("items") or []
        self._resource_version = str(answer["metadata"]["resourceVersion"])
        self._show(JobView.parse(items[0]) if items else JobView())

    def feed(self, event: Mapping[str, Any]) -> None:
        """Take in one watch event."""
        kind, thing = event.get("type"), event.get("object") or {}
        if kind == "ERROR":
            code = int(thing.get("code") or 500)
            message = str(thing.get("message") or "the watch failed")
            raise GoneError(code, message) if code == 410 else UnavailableError(code, message)
        self._resource_version = str(thing["metadata"]["resourceVersion"])
        if kind == "DELETED":
            # The Pod goes with its job: the kubelet's SIGTERM says when, and training goes on until then.
            logger.info("the elasticjob was deleted")
        elif kind != "BOOKMARK":
            self._show(JobView.parse(thing))

    def _show(self, view: JobView) -> None:
        if view != self._view:
            self._view = view
            os.eventfd_write(self._wake_fd, 1)
