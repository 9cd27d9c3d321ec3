"""The reports that an agent has still to write, and when: decided without I/O. `reporter` writes them.

The latest state wins, so an outage ends with one write. One thing is not overwritten: a failure that was not
written yet is written before what came after it, because the controller reads each failure's text, and counts
failures by their sequence.
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
"""Reports of progress that may follow each other at once, and the interval of those beyond them: training
processes cause them, and may send their agent any number of messages."""


class Outbox:
    """The newest report and the ones before it that are still to be written: at most one for each failure.

    All times (`now`, `due_at`) are of the monotonic clock. Not thread-safe.

    Args:
        progress_seconds: between two writes for the sake of steps.
        sequence: the number that those of this agent's writes follow.
    """

    def __init__(self, first: ReportBody, progress_seconds: float, sequence: int = 0) -> None:
        self.latest = first
        """The newest report, written or not."""
        self.progress_seconds = progress_seconds
        self.last_written_at = float("-inf")
        self.progress_due_at: float | None = None
        """When the progress of training is written, if nothing else is before."""
        self._sequence = sequence
        self._pending: deque[ReportBody] = deque([first])
        self._news_seconds = min(NEWS_SECONDS, progress_seconds)
        self._news_spent_until = float("-inf")
        """Time at which a whole burst is free again."""
        self._checkpoint_reported_at = float("-inf")

    # What is to be written.

    def put(self, report: ReportBody, now: float) -> None:
        """Have a report written next. It takes the place of the last one, unless it has a failure more."""
        if _checkpoint(report) not in (None, _checkpoint(self.latest)):
            self._checkpoint_reported_at = now
        self.latest = report
        self.progress_due_at = None  # this report has it
        if self._pending and self._pending[-1].failures == report.failures:
            self._pending.pop()
        self._pending.append(report)

    def progress(self, within_seconds: float | None) -> None:
        """Have progress written so long after the last write; None: when the next is due for that."""
        wait = self.progress_seconds if within_seconds is None else within_seconds
        self.progress_at(self.last_written_at + wait)

    def checkpoint(self, *, is_awaited: bool) -> None:
        """Have a checkpoint reported: when the last one was long enough ago, or at once if it is awaited."""
        self.progress_at(self._checkpoint_reported_at + (0.0 if is_awaited else CHECKPOINT_SECONDS))

    def progress_at(self, due_at: float) -> None:
        """Have progress written at that time, unless it is to be written sooner.

        It is later where many such reports were just written.
        """
        due_at = max(due_at, self._news_spent_until - (NEWS_BURST - 1) * self._news_seconds)
        before = self.progress_due_at
        self.progress_due_at = due_at if before is None else min(due_at, before)

    # What is written.

    def first(self) -> ReportBody | None:
        """Return the oldest that is to be written; None if all have been."""
        return self._pending[0] if self._pending else None

    def next_sequence(self) -> int:
        """Return the number of an attempt to write a report: one that is given up may still arrive."""
        self._sequence += 1
        return self._sequence

    def is_progress_due(self, now: float) -> bool:
        """Whether a report with the progress of training is to be put here now, which is counted."""
        if self.progress_due_at is None or now < self.progress_due_at:
            return False
        self._news_spent_until = max(self._news_spent_until, now) + self._news_seconds
        return True

    def written(self, report: ReportBody, now: float) -> None:
        """Forget `report`, unless a newer one took its place meanwhile."""
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
    """Return the report that follows; what is left out stays as it was."""
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
