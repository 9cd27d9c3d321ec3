"""Writes `status.agent` of the agent's own ElasticWorker, in a thread, so that training never waits for
it."""

from __future__ import annotations

import logging
import os
import threading
import time
from collections.abc import Callable
from dataclasses import replace
from datetime import datetime, timezone
from typing import Any, TypeVar

from agent.environment import Environment
from agent.facts.failure import LocalFailure
from agent.kube.api import AgentApi
from agent.kube.retry import Warnings, retrying
from agent.monitor.stepping import Figures
from agent.report import launch_mark
from agent.report.elasticworker import path_of
from agent.report.outbox import Outbox, changed
from agent.report.refusal import final_refusal, without_refused
from agent.report.report import AgentFacts, ReportBody, Sections, fitting, whole
from agent.signals import deferred
from controller.errors import ApiError, NotFound
from crds.agent_report import AgentCheck, AgentState, Departure

logger = logging.getLogger(__name__)

T = TypeVar("T")

MAX_WAIT_SECONDS = 2.0


class Reporter(threading.Thread):
    """Writes reports in the background, and tries again until they are accepted.

    A change of state is written at once; progress at most every `progress_seconds`, unless it is news; a
    checkpoint at once if it is awaited, else at most every `CHECKPOINT_SECONDS`. After `NEWS_BURST` reports
    in a row, there is one every `NEWS_SECONDS`. Every write has the current figures, and the sections that
    change by themselves.

    It ends when the API server refuses this agent for good, and calls `on_final_refusal`. The agent goes on
    until its job's world, or the kubelet, makes it leave.

    Args:
        progress_seconds: interval of reports of progress.
        sequence: sequence number after which this agent's writes are numbered.
        figures: returns the current figures for each report. It may read `latest`, and must not report.
        sections: return sections of each report, but cause none.
        on_final_refusal: called in this thread.
        now: returns the time.
    """

    def __init__(
        self,
        api: AgentApi,
        me: Environment,
        facts: AgentFacts,
        first: ReportBody,
        *,
        progress_seconds: float,
        sequence: int = 0,
        figures: Callable[[], Figures] | None = None,
        sections: Sections = {},  # noqa: B006
        on_final_refusal: Callable[[], None] = lambda: None,
        now: Callable[[], datetime] = lambda: datetime.now(timezone.utc),
    ) -> None:
        super().__init__(name="dlr-report", daemon=True)
        self._api = api
        self._path = f"{path_of(me)}/status"
        self._me = me
        self._facts = facts
        self._figures = figures
        self._sections = sections
        self._on_final_refusal = on_final_refusal
        self._now = now
        self._changed = threading.Condition()
        self._outbox = Outbox(first, progress_seconds, sequence)
        self._nobody_listens = False
        """The last attempt found no object, or was refused for good, so that `flush` need not wait."""
        self._incomplete: set[str] = set()
        """Omitted sections, each of which is logged once."""
        self._stop_event = threading.Event()
        self._warnings = Warnings(logger, f"report to elasticworker {me.namespace}/{me.worker_name}")

    @property
    def latest(self) -> ReportBody:
        """The newest report, written or not."""
        return self._outbox.latest

    def report(
        self, state: AgentState, observed_round: int | None = None, failure: LocalFailure | None = None
    ) -> None:
        """Report a state; None leaves a part unchanged."""
        with deferred(), self._changed:
            self._put(changed(self._up_to_date(), state, observed_round, failure, self._now()))

    def note_departure(self, departure: Departure) -> None:
        """Add a departure to the next report."""
        with self._changed:
            self._outbox.latest = replace(self.latest, departure=departure)

    def note_store_port(self, port: int) -> None:
        """Change the port of the next round's store in the next report."""
        with self._changed:
            self._facts = replace(self._facts, store_port=port)

    def note_result(self, result: str | None) -> None:
        """Add the result of the training to the next report."""
        with self._changed:
            self._outbox.latest = replace(self.latest, result=result)

    def check(self, check: AgentCheck) -> None:
        """Report the findings of a NodeCheck, without a change of state."""
        with deferred(), self._changed:
            self._put(replace(self._up_to_date(), check=check))

    def progress(self, *, within_seconds: float | None = None) -> None:
        """Report progress this long after the last write; None for the usual interval."""
        with self._changed:
            self._outbox.progress(within_seconds)
            self._changed.notify_all()

    def checkpoint(self, *, is_awaited: bool = False) -> None:
        """Report a saved checkpoint: at once if it is awaited, else at its usual interval.

        Args:
            is_awaited: a growing world waits for it.
        """
        with self._changed:
            self._outbox.checkpoint(is_awaited=is_awaited)
            self._changed.notify_all()

    def hasten(self) -> None:
        """Write scheduled reports at once."""
        with self._changed:
            if self._outbox.progress_due_at is not None:
                self._outbox.progress_at(time.monotonic())
                self._changed.notify_all()

    def flush(self, timeout_seconds: float) -> bool:
        """Wait until all reports are written.

        Returns:
            False if the API server did not accept them in time, or has no object for them.
        """
        if not self.is_alive():
            return False
        with self._changed:
            if self._outbox.progress_due_at is not None:
                self._put(self._up_to_date())
            self._changed.wait_for(
                lambda: self._nobody_listens or self._outbox.first() is None, timeout_seconds
            )
            return self._outbox.first() is None

    def stop(self) -> None:
        """End the thread, without waiting for it or for unwritten reports."""
        self._stop_event.set()
        with self._changed:
            self._changed.notify_all()

    def run(self) -> None:
        retry = retrying(
            self._stop_event,
            self._warnings,
            max_wait_seconds=MAX_WAIT_SECONDS,
            is_final=lambda error: final_refusal(error, self._me),
        )
        while self._wait_until_due():
            try:
                retry(self._write)
            except Exception as error:
                if refusal := final_refusal(error, self._me):
                    logger.warning("nothing more is reported: %s", refusal)
                    self._on_final_refusal()
                return  # refused for good, or stopped

    def _wait_until_due(self) -> bool:
        """Wait until there is something to write; return False after `stop`."""
        with self._changed:
            while not self._stop_event.is_set() and self._outbox.first() is None:
                wait_seconds = None
                now = time.monotonic()
                if self._outbox.is_progress_due(now):
                    self._put(self._up_to_date())
                    break
                if (due_at := self._outbox.progress_due_at) is not None:
                    wait_seconds = due_at - now
                self._changed.wait(wait_seconds)
            return not self._stop_event.is_set()

    def _put(self, report: ReportBody) -> None:
        self._outbox.put(report, time.monotonic())
        self._changed.notify_all()

    def _up_to_date(self) -> ReportBody:
        """Return the latest report with fresh figures.

        Until the processes report a step, it keeps the progress of the earlier ones.
        """
        if self._figures is None:
            return self.latest
        figures = self._made("progress", self._figures)
        if figures is None:
            return self.latest
        fresh = replace(self.latest, **vars(figures))
        return replace(fresh, progress=figures.progress or self.latest.progress)

    def _write(self) -> None:
        """Write the oldest pending report; each attempt reads it again, so an outage ends with new data."""
        with self._changed:
            report, sequence = self._outbox.first(), self._outbox.next_sequence()
        if report is None:
            return
        sections = {name: self._made(name, make) for name, make in self._sections.items()}
        status = fitting(whole(self._me, self._facts, report, sequence, sections))
        try:
            self._patch(status)
        except ApiError as error:
            with self._changed:
                gone = isinstance(error, NotFound)
                self._nobody_listens = gone or final_refusal(error, self._me) is not None
                self._changed.notify_all()
            raise
        self._warnings.succeeded()
        if self._outbox.last_written_at == float("-inf"):
            launch_mark.clear(os.environ)
        with self._changed:
            self._nobody_listens = False
            self._outbox.written(report, time.monotonic())
            self._changed.notify_all()

    def _patch(self, status: dict[str, Any]) -> None:
        """Write a report, without the sections that the API server refuses.

        Raises:
            ApiError: the report was not written.
        """
        while True:
            try:
                self._api.merge_patch(self._path, {"status": {"agent": status}})
                return
            except ApiError as error:
                if (rest := without_refused(status, error)) is None:
                    raise
                names = {name for name, value in status.items() if rest[name] != value}
                if not self._incomplete.issuperset(names):
                    self._incomplete.update(names)
                    logger.warning(
                        "a report is written without %s: it is refused: %s", ", ".join(sorted(names)), error
                    )
                status = rest

    def _made(self, name: str, make: Callable[[], T]) -> T | None:
        """Make a section of a report; return None if that fails, which is logged once for each section."""
        try:
            return make()
        except Exception:
            if name not in self._incomplete:
                self._incomplete.add(name)
                logger.exception("reports go on without %s, which cannot be made", name)
            return None
