"""Decides, without I/O, which reports an agent has to write, and when. `reporter` writes them.

The latest state wins, so that an outage ends with one write. Only failures are not overwritten: each is
written before later reports, because the controller reads each failure's text, and counts failures by their
sequence.
"""

from __future__ import annotations

from collections import deque
from dataclasses import replace
from datetime import datetime

from agent.facts.failure import LocalFailure
from agent.report.report import ReportBody
from crds.agent_report import CHECKPOINT_SECONDS, AgentState

NEWS_BURST = 20
NEWS_SECONDS = 0.2
"""Rate limit for reports of progress: the size of a burst, and the interval after it. Training processes
cause these reports, and may send their agent any number of messages."""


class Outbox:
    """The newest report and the unwritten ones before it, at most one for each failure.

    All times (`now`, `due_at`) are of the monotonic clock. Not thread-safe.

    Args:
        progress_seconds: interval of reports of progress.
        sequence: sequence number after which this agent's writes are numbered.
    """

    def __init__(self, first: ReportBody, progress_seconds: float, sequence: int = 0) -> None:
        self.latest = first
        """The newest report, written or not."""
        self.progress_seconds = progress_seconds
        self.last_written_at = float("-inf")
        self.progress_due_at: float | None = None
        """Time at which the progress of training is reported, unless another report comes first."""
        self._sequence = sequence
        self._pending: deque[ReportBody] = deque([first])
        self._news_seconds = min(NEWS_SECONDS, progress_seconds)
        self._news_spent_until = float("-inf")
        """Time at which a whole burst is allowed again."""
        self._checkpoint_reported_at = float("-inf")

    # Reports to write.

    def put(self, report: ReportBody, now: float) -> None:
        """Add a report to write. It replaces the last unwritten one, unless it has one failure more."""
        if _checkpoint(report) not in (None, _checkpoint(self.latest)):
            self._checkpoint_reported_at = now
        self.latest = report
        self.progress_due_at = None  # this report includes it
        if self._pending and self._pending[-1].failures == report.failures:
            self._pending.pop()
        self._pending.append(report)

    def progress(self, within_seconds: float | None) -> None:
        """Schedule a report of progress this long after the last write; None for the usual interval."""
        wait = self.progress_seconds if within_seconds is None else within_seconds
        self.progress_at(self.last_written_at + wait)

    def checkpoint(self, *, is_awaited: bool) -> None:
        """Schedule a report of a checkpoint: at once if it is awaited, else at its usual interval."""
        self.progress_at(self._checkpoint_reported_at + (0.0 if is_awaited else CHECKPOINT_SECONDS))

    def progress_at(self, due_at: float) -> None:
        """Schedule a report of progress at that time, unless one is due before.

        It is delayed if many of these reports were just written.
        """
        due_at = max(due_at, self._news_spent_until - (NEWS_BURST - 1) * self._news_seconds)
        before = self.progress_due_at
        self.progress_due_at = due_at if before is None else min(due_at, before)

    # Written reports.

    def first(self) -> ReportBody | None:
        """Return the oldest unwritten report; None if all are written."""
        return self._pending[0] if self._pending else None

    def next_sequence(self) -> int:
        """Return a new number for each attempt to write a report, since an abandoned one may still arrive."""
        self._sequence += 1
        return self._sequence

    def is_progress_due(self, now: float) -> bool:
        """Return whether a report of progress has to be put here now, and count it for the rate limit."""
        if self.progress_due_at is None or now < self.progress_due_at:
            return False
        self._news_spent_until = max(self._news_spent_until, now) + self._news_seconds
        return True

    def written(self, report: ReportBody, now: float) -> None:
        """Remove `report`, unless a newer one has replaced it meanwhile."""
        if self._pending and self._pending[0] is report:
            self._pending.popleft()
        self.last_written_at = now


def changed(
    last: ReportBody,
    state: AgentState,
    observed_round: int | None,
    failure: LocalFailure | None,
    time: datetime,
) -> ReportBody:
    """Return the next report; None leaves a part unchanged."""
    round_ = last.observed_round if observed_round is None else observed_round
    unchanged = (state, round_, failure) == (last.state, last.observed_round, None)
    return replace(
        last,
        state=state,
        since=last.since if unchanged else time,
        observed_round=round_,
        failure=failure or last.failure,
    )


def _checkpoint(report: ReportBody) -> int | None:
    return report.progress.checkpoint_step if report.progress else None
