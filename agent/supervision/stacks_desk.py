"""Stacks of the training processes, requested by an annotation of the job (`dlr job stacks`).

Each new request is answered once. A request that is older than the agent was for other agents.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from datetime import datetime, timezone

from agent.monitor.hang_guard import HangGuard
from agent.processes.processes import TrainingProcesses
from crds.agent_report import MAX_STACKS, AskedStacks, RankStack

REPORTED_SECONDS = 60.0
"""Time for which an answer is part of the agent's reports."""


class StacksDesk:
    """Answers requests for stacks.

    A thread takes them, since that may last seconds, in which a process may fail. After REPORTED_SECONDS the
    answer is left out of the reports, so that no status keeps it.

    Args:
        guard: takes the stacks.
        answered: the request at the agent's start, which is not answered; "" if there was none.
    """

    def __init__(self, guard: HangGuard, answered: str = "") -> None:
        self._guard = guard
        self._answered = answered
        self._taking: threading.Thread | None = None
        self._answer: tuple[AskedStacks, float] | None = None
        """The answer, and the end of its time in the reports (CLOCK_MONOTONIC)."""

    def look(self, request: str, processes: TrainingProcesses, report: Callable[[], None]) -> None:
        """Begin to answer if the request is new. Call it about every second, in one thread.

        Args:
            request: the job's current request; "" if there is none.
            report: requests a report, once there is an answer.
        """
        if request in ("", self._answered) or (self._taking is not None and self._taking.is_alive()):
            return
        self._answered = request
        stacks = self._guard.stacks_of(processes.alive())
        self._taking = threading.Thread(
            target=self._take, args=(request, stacks, report), name="dlr-asked-stacks", daemon=True
        )
        self._taking.start()

    def to_status(self) -> AskedStacks | None:
        """Return the last answer; None if there is none, or its time is over."""
        answer = self._answer
        return answer[0] if answer is not None and time.monotonic() < answer[1] else None

    def _take(self, request: str, stacks: Callable[[], list[RankStack]], report: Callable[[], None]) -> None:
        answer = AskedStacks(request, datetime.now(timezone.utc), tuple(stacks()[:MAX_STACKS]))
        self._answer = answer, time.monotonic() + REPORTED_SECONDS
        report()
