"""Writes `status.agent` of the agent's own ElasticWorker, in a thread: training waits for no API server."""

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
    """Writes reports in the background, and tries again until they are taken.

    A change of state is written at once; step progress at most every `progress_seconds`, unless it is news; a
    checkpoint at once, if it is awaited or none was reported in the last `CHECKPOINT_SECONDS`, else when
    these are over. After `NEWS_BURST` of them in a row, one every `NEWS_SECONDS` has all. Every write says
    how far training is now, and has the other sections that change by themselves.

    It ends when the API server will take nothing more from this agent, and calls `on_final_refusal`. The
    agent goes on: its job's world, or the kubelet, says when to leave.

    Args:
        progress_seconds: between two writes for the sake of steps.
        sequence: the number that those of this agent's writes follow.
        figures: how far training is, read for each report. It may look at `latest`, and must not report.
        sections: parts of a report that are read for each one. They are no reason to write one.
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
        """The last attempt found no such object, or was refused for good: whoever leaves need not wait."""
        self._incomplete: set[str] = set()
        """Sections that were left out, which is logged once."""
        self._stop_event = threading.Event()
        self._warnings = Warnings(logger, f"report to elasticworker {me.namespace}/{me.worker_name}")

    @property
    def latest(self) -> ReportBody:
        """The newest report, written or not."""
        return self._outbox.latest

    def report(
        self, state: AgentState, observed_round: int | None = None, failure: LocalFailure | None = None
    ) -> None:
        """Report a state; what is left out stays as it was."""
        with deferred(), self._changed:
            self._put(changed(self._up_to_date(), state, observed_round, failure, self._now()))

    def note_departure(self, departure: Departure) -> None:
        """Have the next report tell of it."""
        with self._changed:
            self._outbox.latest = replace(self.latest, departure=departure)

    def note_store_port(self, port: int) -> None:
        """Have the next report name another port for the next round's store."""
        with self._changed:
            self._facts = replace(self._facts, store_port=port)

    def note_result(self, result: str | None) -> None:
        """Have the next report say what training came to."""
        with self._changed:
            self._outbox.latest = replace(self.latest, result=result)

    def check(self, check: AgentCheck) -> None:
        """Report what a NodeCheck found out here; the state stays as it was."""
        with deferred(), self._changed:
            self._put(replace(self._up_to_date(), check=check))

    def progress(self, *, within_seconds: float | None = None) -> None:
        """Report how far training is: so long after the last write, or when the next is due for that."""
        with self._changed:
            self._outbox.progress(within_seconds)
            self._changed.notify_all()

    def checkpoint(self, *, is_awaited: bool = False) -> None:
        """Report that a checkpoint was saved: when the last one was reported long enough ago, or at once.

        Args:
            is_awaited: somebody waits for it.
        """
        with self._changed:
            self._outbox.checkpoint(is_awaited=is_awaited)
            self._changed.notify_all()

    def hasten(self) -> None:
        """Write what is to be reported later at once: somebody has begun to wait for it."""
        with self._changed:
            if self._outbox.progress_due_at is not None:
                self._outbox.progress_at(time.monotonic())
                self._changed.notify_all()

    def flush(self, timeout_seconds: float) -> bool:
        """Wait until all reports are written.

        Returns:
            False if the API server did not take them in time, or has no place for them.
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
        """End the thread, without waiting for it, or for reports that are not written yet."""
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
                return  # or asked to stop

    def _wait_until_due(self) -> bool:
        """Wait until there is something to write; return False when asked to stop."""
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

        As long as the processes have reported no step, it has the progress of those before them.
        """
        if self._figures is None:
            return self.latest
        figures = self._made("progress", self._figures)
        if figures is None:
            return self.latest
        fresh = replace(self.latest, **vars(figures))
        return replace(fresh, progress=figures.progress or self.latest.progress)

    def _write(self) -> None:
        """Write the oldest pending report. Each attempt looks anew, so an outage ends with fresh news."""
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
        """Write a report, without what the API server refuses of it.

        Raises:
            ApiError: it is not written.
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
                        "a report goes without %s: it is refused: %s", ", ".join(sorted(names)), error
                    )
                status = rest

    def _made(self, name: str, make: Callable[[], T]) -> T | None:
        """Make a section of a report; None where that fails, which is logged once for each section."""
        try:
            return make()
        except Exception:
            if name not in self._incomplete:
                self._incomplete.add(name)
                logger.exception("reports go on without %s, which cannot be made", name)
            return None
