"""Stacks of the training processes that somebody asks for by an annotation of the job (`dlr job stacks`).

Each new request is answered once. A request that stands there already when the agent comes was for others.
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
"""How long an answer is part of the agent's reports."""


class StacksDesk:
    """Answers requests for stacks.

    They are taken in a thread, since that may take seconds, in which a process may fail. The answer is
    reported for a while, and then left out again, so no status keeps it.

    Args:
        guard: takes the stacks.
        answered: the request that stood there when the agent came; "" if there was none.
    """

    def __init__(self, guard: HangGuard, answered: str = "") -> None:
        self._guard = guard
        self._answered = answered
        self._taking: threading.Thread | None = None
        self._answer: tuple[AskedStacks, float] | None = None
        """The answer, and until when it is reported (CLOCK_MONOTONIC)."""

    def look(self, request: str, processes: TrainingProcesses, report: Callable[[], None]) -> None:
        """Begin to answer if there is a new request. Call it every second or so, in one thread.

        Args:
            request: what the job asks now; "" if there is nothing.
            report: has a report written, once there is an answer.
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
        """Return the last answer; None if there is none, or it was reported for long enough."""
        answer = self._answer
        return answer[0] if answer is not None and time.monotonic() < answer[1] else None

    def _take(self, request: str, stacks: Callable[[], list[RankStack]], report: Callable[[], None]) -> None:
        answer = AskedStacks(request, datetime.now(timezone.utc), tuple(stacks()[:MAX_STACKS]))
        self._answer = answer, time.monotonic() + REPORTED_SECONDS
        report()
