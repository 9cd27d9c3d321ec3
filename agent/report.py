"""The agent's voice: `status.agent` of its own ElasticWorker, written by one thread.

The latest state wins, so training never waits for the API server and an outage ends with one write. One thing
is not overwritten: a failure that was not yet told is told before what came after it, because the controller
reads each failure's text, and counts failures by their sequence.
"""

from __future__ import annotations

import logging
import threading
import time
from collections import deque
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from datetime import datetime, timezone
from http import HTTPStatus
from typing import Any

from agent.api import GROUP_PATH, ApiClient, ApiError, retrying
from agent.check_report import CheckReport
from agent.complaints import Complaints
from agent.environment import Environment
from agent.failure import Failure
from agent.stepping import Figures, Progress, RoundProgress
from agent.timestamps import rfc3339
from agent.usage import Usage
from agent.world import AgentState

logger = logging.getLogger(__name__)

MAX_WAIT_SECONDS = 2.0


@dataclass(frozen=True)
class Report:
    """Everything the agent says; each write carries all of it."""

    state: AgentState
    since: datetime
    observed_round: int = 0
    failure: Failure | None = None
    progress: Progress | None = None
    rounds: tuple[RoundProgress, ...] = ()
    check: CheckReport | None = None

    @property
    def failures(self) -> int:
        return self.failure.sequence if self.failure else 0

    def to_status(self) -> dict[str, Any]:
        return {
            "state": self.state.value,
            "since": rfc3339(self.since),
            "observedRound": self.observed_round,
            "failure": self.failure.to_status() if self.failure else None,
            "progress": self.progress.to_status() if self.progress else None,
            "rounds": [round_.to_status() for round_ in self.rounds],
            "check": self.check.to_status() if self.check else None,
        }


@dataclass(frozen=True)
class Facts:
    """What stays the same for the agent's life."""

    store_port: int
    local_world_size: int
    accelerators: dict[str, Any]

    def to_status(self, me: Environment) -> dict[str, Any]:
        return {
            "incarnation": me.incarnation,
            "podUid": me.pod_uid,
            "address": me.pod_ip,
            "storePort": self.store_port,
            "localWorldSize": self.local_world_size,
            "accelerators": self.accelerators,
        }


class Outbox:
    """What is still to be told, oldest first: at most one report for each failure. Not thread-safe."""

    def __init__(self) -> None:
        self._reports: deque[Report] = deque()

    def put(self, report: Report) -> None:
        if self._reports and self._reports[-1].failures == report.failures:
            self._reports.pop()
        self._reports.append(report)

    def first(self) -> Report | None:
        return self._reports[0] if self._reports else None

    def told(self, report: Report) -> None:
        """Forget `report`, unless a newer one took its place meanwhile."""
        if self._reports and self._reports[0] is report:
            self._reports.popleft()


class Reporter(threading.Thread):
    """Writes reports in the background, for ever trying again.

    A change of state is written at once, step progress at most every `progress_seconds` unless it is news.
    Every write says how far training is now, if somebody was given to ask (`follow`), and what the Pod uses.
    """

    def __init__(
        self,
        api: ApiClient,
        me: Environment,
        facts: Facts,
        first: Report,
        *,
        progress_seconds: float,
        usage: Callable[[], Usage | None] = lambda: None,
        now: Callable[[], datetime] = lambda: datetime.now(timezone.utc),
    ) -> None:
        super().__init__(name="dlr-report", daemon=True)
        self._api = api
        self._path = f"{GROUP_PATH}/namespaces/{me.namespace}/elasticworkers/{me.worker_name}/status"
        self._facts = facts.to_status(me)
        self._progress_seconds = progress_seconds
        self._usage = usage
        self._now = now
        self._changed = threading.Condition()
        self._outbox = Outbox()
        self._outbox.put(first)
        self._latest = first
        self._figures: Callable[[], Figures] | None = None
        self._progress_due_at: float | None = None
        self._last_told_at = float("-inf")
        self._worker_is_gone = False
        """The last attempt found no such object: whoever leaves need not wait to be heard."""
        self._stop_event = threading.Event()
        self._complaints = Complaints(logger, f"report to elasticworker {me.namespace}/{me.worker_name}")

    @property
    def latest(self) -> Report:
        return self._latest

    def follow(self, figures: Callable[[], Figures]) -> None:
        """Ask there how far training is. It may look at `latest`, and must not report anything."""
        self._figures = figures

    def report(
        self, state: AgentState, observed_round: int | None = None, failure: Failure | None = None
    ) -> None:
        """Say a new state; what is left out stays as it was."""
        with self._changed:
            last = self._up_to_date()
            round_ = last.observed_round if observed_round is None else observed_round
            unchanged = (state, round_, failure) == (last.state, last.observed_round, None)
            self._put(
                replace(
                    last,
                    state=state,
                    since=last.since if unchanged else self._now(),
                    observed_round=round_,
                    failure=failure or last.failure,
                )
            )

    def check(self, check: CheckReport) -> None:
        """Say what a NodeCheck found out here; the state stays as it was."""
        with self._changed:
            self._put(replace(self._up_to_date(), check=check))

    def progress(self, *, at_once: bool = False) -> None:
        """Say how far training is, soon or at once."""
        with self._changed:
            due_at = time.monotonic() if at_once else self._last_told_at + self._progress_seconds
            self._progress_due_at = min(due_at, self._progress_due_at or due_at)
            self._changed.notify_all()

    def flush(self, timeout_seconds: float) -> bool:
        """Wait until all is told; False if the API server did not take it in time, or has no place for it."""
        if not self.is_alive():
            return False
        with self._changed:
            self._changed.wait_for(
                lambda: self._worker_is_gone or self._outbox.first() is None, timeout_seconds
            )
            return self._outbox.first() is None

    def stop(self) -> None:
        self._stop_event.set()
        with self._changed:
            self._changed.notify_all()

    def run(self) -> None:
        retry = retrying(
            self._stop_event, max_wait_seconds=MAX_WAIT_SECONDS, before_sleep=self._complaints.failed
        )
        while self._wait_until_due():
            try:
                retry(self._tell)
            except ApiError:
                return  # asked to stop

    def _wait_until_due(self) -> bool:
        """False when asked to stop."""
        with self._changed:
            while not self._stop_event.is_set() and self._outbox.first() is None:
                wait_seconds = None
                if self._progress_due_at is not None:
                    wait_seconds = self._progress_due_at - time.monotonic()
                    if wait_seconds <= 0:
                        self._put(self._up_to_date())
                        break
                self._changed.wait(wait_seconds)
            return not self._stop_event.is_set()

    def _put(self, report: Report) -> None:
        self._latest = report
        self._progress_due_at = None  # what comes from now on is due anew
        self._outbox.put(report)
        self._changed.notify_all()

    def _up_to_date(self) -> Report:
        """With fresh figures. Processes that told nothing yet leave the progress of those before them."""
        if self._figures is None:
            return self._latest
        figures = self._figures()
        return replace(
            self._latest, progress=figures.progress or self._latest.progress, rounds=figures.rounds
        )

    def _tell(self) -> None:
        """Write the oldest untold report; each attempt looks anew, so an outage ends with fresh news."""
        with self._changed:
            report = self._outbox.first()
        if report is None:
            return
        usage = self._usage()
        said = {**self._facts, **report.to_status(), "usage": usage.to_status() if usage else None}
        try:
            self._api.merge_patch(self._path, {"status": {"agent": said}})
        except ApiError as error:
            with self._changed:
                self._worker_is_gone = error.status == HTTPStatus.NOT_FOUND
                self._changed.notify_all()
            raise
        self._complaints.succeeded()
        with self._changed:
            self._worker_is_gone = False
            self._outbox.told(report)
            self._last_told_at = time.monotonic()
            self._changed.notify_all()


def last_report(api: ApiClient, me: Environment) -> dict[str, Any]:
    """`status.agent` as an earlier agent of this slot wrote it; {} if there was none."""
    path = f"{GROUP_PATH}/namespaces/{me.namespace}/elasticworkers/{me.worker_name}"
    complaints = Complaints(logger, f"read elasticworker {me.namespace}/{me.worker_name}")
    retry = retrying(threading.Event(), max_wait_seconds=MAX_WAIT_SECONDS, before_sleep=complaints.failed)
    report: dict[str, Any] = (retry(api.get, path).get("status") or {}).get("agent") or {}
    return report


def is_of_this_pod(report: Mapping[str, Any], me: Environment) -> bool:
    return report.get("podUid") == me.pod_uid and report.get("incarnation") == me.incarnation
