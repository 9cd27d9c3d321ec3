"""Writes `status.agent` of the agent's own ElasticWorker, in a thread.

The latest state wins, so training never waits for the API server, and an outage ends with one write. One
thing is not overwritten: a failure that was not written yet is written before what came after it, because the
controller reads each failure's text, and counts failures by their sequence.
"""

from __future__ import annotations

import logging
import os
import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import replace
from datetime import datetime, timezone
from typing import Any, TypeVar

from agent.environment import Environment
from agent.facts.failure import Failure
from agent.kube.api import Api
from agent.kube.retry import Warnings, retrying
from agent.monitor.stepping import Figures
from agent.report import launch_mark
from agent.report.elasticworker import path_of
from agent.report.refusal import LeftOut, final_refusal
from agent.report.report import Facts, PendingReports, Report, fitting, whole
from agent.signals import deferred
from controller.errors import ApiError, NotFound
from crds.agent_report import CHECKPOINT_SECONDS, AgentCheck, AgentState, Departure

logger = logging.getLogger(__name__)

T = TypeVar("T")

MAX_WAIT_SECONDS = 2.0
NEWS_BURST = 20
NEWS_SECONDS = 0.2
"""Reports of progress that may follow each other at once, and the interval of those beyond them: training
processes cause them, and may send their agent any number of messages."""


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
        figures: how far training is, read for each report. It may look at `latest`, and must not report.
        sections: parts of a report that are read for each one, by field of `AgentReport`. They are no reason
            to write one.
        on_final_refusal: called in this thread.
        now: returns the time.
    """

    def __init__(
        self,
        api: Api,
        me: Environment,
        facts: Facts,
        first: Report,
        *,
        progress_seconds: float,
        figures: Callable[[], Figures] | None = None,
        sections: Mapping[str, Callable[[], Any]] | None = None,
        on_final_refusal: Callable[[], None] = lambda: None,
        now: Callable[[], datetime] = lambda: datetime.now(timezone.utc),
    ) -> None:
        super().__init__(name="dlr-report", daemon=True)
        self._api = api
        self._path = f"{path_of(me)}/status"
        self._me = me
        self._facts = facts
        self._progress_seconds = progress_seconds
        self._figures = figures
        self._sections = dict(sections or {})
        self._on_final_refusal = on_final_refusal
        self._now = now
        self._changed = threading.Condition()
        self._pending = PendingReports()
        self._pending.put(first)
        self._latest = first
        self._progress_due_at: float | None = None
        self._news_seconds = min(NEWS_SECONDS, progress_seconds)
        self._news_spent_until = float("-inf")
        """Time at which a whole burst is free again (CLOCK_MONOTONIC)."""
        self._last_written_at = float("-inf")
        self._checkpoint_reported_at = float("-inf")
        self._nobody_listens = False
        """The last attempt found no such object, or was refused for good: whoever leaves need not wait."""
        self._left_out = LeftOut()
        self._incomplete: set[str] = set()
        """Sections that were left out, which is logged once."""
        self._stop_event = threading.Event()
        self._warnings = Warnings(logger, f"report to elasticworker {me.namespace}/{me.worker_name}")

    @property
    def latest(self) -> Report:
        """The newest report, written or not."""
        return self._latest

    def report(
        self, state: AgentState, observed_round: int | None = None, failure: Failure | None = None
    ) -> None:
        """Report a state; what is left out stays as it was."""
        with deferred(), self._changed:
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

    def note_departure(self, departure: Departure) -> None:
        """Have the next report tell of it."""
        with self._changed:
            self._latest = replace(self._latest, departure=departure)

    def note_store_port(self, port: int) -> None:
        """Have the next report name another port for the next round's store."""
        with self._changed:
            self._facts = replace(self._facts, store_port=port)

    def note_result(self, result: str | None) -> None:
        """Have the next report say what training came to."""
        with self._changed:
            self._latest = replace(self._latest, result=result)

    def check(self, check: AgentCheck) -> None:
        """Report what a NodeCheck found out here; the state stays as it was."""
        with deferred(), self._changed:
            self._put(replace(self._up_to_date(), check=check))

    def progress(self, *, within_seconds: float | None = None) -> None:
        """Report how far training is: so long after the last write, or when the next is due for that."""
        wait = self._progress_seconds if within_seconds is None else within_seconds
        with self._changed:
            self._report_progress_at(self._last_written_at + wait)

    def checkpoint(self, *, is_awaited: bool = False) -> None:
        """Report that a checkpoint was saved: when the last one was reported long enough ago, or at once.

        Args:
            is_awaited: somebody waits for it.
        """
        wait = 0.0 if is_awaited else CHECKPOINT_SECONDS
        with self._changed:
            self._report_progress_at(self._checkpoint_reported_at + wait)

    def hasten(self) -> None:
        """Write what is to be reported later at once: somebody has begun to wait for it."""
        with self._changed:
            if self._progress_due_at is not None:
                self._report_progress_at(time.monotonic())

    def flush(self, timeout_seconds: float) -> bool:
        """Wait until all reports are written.

        Returns:
            False if the API server did not take them in time, or has no place for them.
        """
        if not self.is_alive():
            return False
        with self._changed:
            if self._progress_due_at is not None:
                self._put(self._up_to_date())
            self._changed.wait_for(
                lambda: self._nobody_listens or self._pending.first() is None, timeout_seconds
            )
            return self._pending.first() is None

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
            while not self._stop_event.is_set() and self._pending.first() is None:
                wait_seconds = None
                if self._progress_due_at is not None:
                    wait_seconds = self._progress_due_at - time.monotonic()
                    if wait_seconds <= 0:
                        spent_until = max(self._news_spent_until, time.monotonic())
                        self._news_spent_until = spent_until + self._news_seconds
                        self._put(self._up_to_date())
                        break
                self._changed.wait(wait_seconds)
            return not self._stop_event.is_set()

    def _report_progress_at(self, due_at: float) -> None:
        """Have progress written at that time (CLOCK_MONOTONIC), unless it is to be written sooner.

        It is later where many such reports were just written.
        """
        due_at = max(due_at, self._news_spent_until - (NEWS_BURST - 1) * self._news_seconds)
        before = self._progress_due_at
        self._progress_due_at = due_at if before is None else min(due_at, before)
        self._changed.notify_all()

    def _put(self, report: Report) -> None:
        if _checkpoint(report) not in (None, _checkpoint(self._latest)):
            self._checkpoint_reported_at = time.monotonic()
        self._latest = report
        self._progress_due_at = None  # this report has it
        self._pending.put(report)
        self._changed.notify_all()

    def _up_to_date(self) -> Report:
        """Return the latest report with fresh figures.

        As long as the processes have reported no step, it has the progress of those before them.
        """
        if self._figures is None:
            return self._latest
        figures = self._made("progress", self._figures)
        if figures is None:
            return self._latest
        return replace(
            self._latest,
            progress=figures.progress or self._latest.progress,
            rounds=figures.rounds,
            trouble=figures.trouble,
            series=figures.series,
            slow=figures.slow,
        )

    def _write(self) -> None:
        """Write the oldest pending report. Each attempt looks anew, so an outage ends with fresh news."""
        with self._changed:
            report = self._pending.first()
        if report is None:
            return
        sections = {name: self._made(name, make) for name, make in self._sections.items()}
        status = fitting(whole(self._me, self._facts, report, sections))
        try:
            self._patch(status)
        except ApiError as error:
            with self._changed:
                gone = isinstance(error, NotFound)
                self._nobody_listens = gone or final_refusal(error, self._me) is not None
                self._changed.notify_all()
            raise
        self._warnings.succeeded()
        if self._last_written_at == float("-inf"):
            launch_mark.clear(os.environ)
        with self._changed:
            self._nobody_listens = False
            self._pending.written(report)
            self._last_written_at = time.monotonic()
            self._changed.notify_all()

    def _patch(self, status: dict[str, Any]) -> None:
        """Write a report without what the API server has refused, now or before.

        Raises:
            ApiError: it is not written.
        """
        while True:
            sent = self._left_out.without(status)
            try:
                self._api.merge_patch(self._path, {"status": {"agent": sent}})
                return
            except ApiError as error:
                names = self._left_out.take_in(error, sent)
                if not names:
                    raise
                if not self._incomplete.issuperset(names):
                    self._incomplete.update(names)
                    logger.warning("reports go on without %s: it is refused: %s", ", ".join(names), error)

    def _made(self, name: str, make: Callable[[], T]) -> T | None:
        """Make a section of a report; None where that fails, which is logged once for each section."""
        try:
            return make()
        except Exception:
            if name not in self._incomplete:
                self._incomplete.add(name)
                logger.exception("reports go on without %s, which cannot be made", name)
            return None


def _checkpoint(report: Report) -> int | None:
    return report.progress.checkpoint_step if report.progress else None
