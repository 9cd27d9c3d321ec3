"""Answers whoever asks where the training processes are: `dlr job stacks`, by an annotation of the job.

Stacks are taken in a thread of their own, since that may take seconds, in which a process may fail. The
answer is told for a while and then left out again, so no status keeps it.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import datetime, timezone

from agent.monitor.hang_guard import HangGuard
from agent.report.failure import RankStack
from agent.report.timestamps import rfc3339
from agent.session import Session
from agent.supervision.processes import TrainingProcesses
from crds.protocol import MAX_STACKS, NATIVE, AskedStacksStatus

TOLD_SECONDS = 60.0
"""How long the answer is part of the agent's reports."""


@dataclass(frozen=True)
class _Answer:
    status: AskedStacksStatus
    until: float
    """CLOCK_MONOTONIC."""


class AskedStacks:
    """Takes the stacks of the processes that run, once for each new request.

    A request that stands there already when the agent comes was for others.
    """

    def __init__(self, session: Session, guard: HangGuard) -> None:
        self._session = session
        self._guard = guard
        self._answered = session.asks_for_stacks()
        self._taking: threading.Thread | None = None
        self._answer: _Answer | None = None
        session.reporter.follow_asked_stacks(self.to_status)

    def look(self, processes: TrainingProcesses) -> None:
        """Begin to take stacks if there is a new request. Call it every second or so, in one thread."""
        request = self._session.asks_for_stacks()
        if request in ("", self._answered) or (self._taking is not None and self._taking.is_alive()):
            return
        self._answered = request
        take = self._guard.stacks_of(processes.alive(), native=request.endswith(NATIVE))
        self._taking = threading.Thread(
            target=self._take, args=(request, take), name="dlr-asked-stacks", daemon=True
        )
        self._taking.start()

    def to_status(self) -> AskedStacksStatus | None:
        """Return the last answer; None if there is none, or it was told for long enough."""
        answer = self._answer
        return answer.status if answer is not None and time.monotonic() < answer.until else None

    def _take(self, request: str, take: Callable[[], Sequence[RankStack]]) -> None:
        stacks = [stack.to_status() for stack in take()[:MAX_STACKS]]
        taken_at = rfc3339(datetime.now(timezone.utc))
        self._answer = _Answer(
            {"request": request, "time": taken_at, "stacks": stacks}, time.monotonic() + TOLD_SECONDS
        )
        self._session.reporter.progress(within_seconds=0.0)
