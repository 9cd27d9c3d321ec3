"""Answers to what somebody asks of a job's agents, by an annotation of the job."""

from __future__ import annotations

import threading
import time
from abc import ABC, abstractmethod
from collections.abc import Callable
from typing import Generic, TypeVar

from agent.processes.processes import TrainingProcesses
from agent.session import Session

Status = TypeVar("Status")

TOLD_SECONDS = 60.0
"""How long an answer is part of the agent's reports."""


class Asked(ABC, Generic[Status]):
    """Gives an answer, once for each new request.

    It is taken in a thread of its own, since that may take seconds, in which a process may fail; told for a
    while; and then left out again, so no status keeps it. A request that stands there already when the agent
    comes was for others.

    Args:
        asks: the request, as the job says it now; "" if there is none.
        name: of the thread.
    """

    def __init__(self, session: Session, asks: Callable[[], str], name: str) -> None:
        self._reporter = session.reporter
        self._asks = asks
        self._name = name
        self._answered = asks()
        self._taking: threading.Thread | None = None
        self._answer: tuple[Status, float] | None = None
        """It, and until when it is told (CLOCK_MONOTONIC)."""

    @abstractmethod
    def taker(self, request: str, processes: TrainingProcesses) -> Callable[[], Status] | None:
        """Return what takes the answer; None if there is none to give here."""

    def look(self, processes: TrainingProcesses) -> None:
        """Begin to answer if there is a new request. Call it every second or so, in one thread."""
        request = self._asks()
        if request in ("", self._answered) or (self._taking is not None and self._taking.is_alive()):
            return
        self._answered = request
        take = self.taker(request, processes)
        if take is None:
            return
        self._taking = threading.Thread(target=self._take, args=(take,), name=self._name, daemon=True)
        self._taking.start()

    def to_status(self) -> Status | None:
        """Return the last answer; None if there is none, or it was told for long enough."""
        answer = self._answer
        return answer[0] if answer is not None and time.monotonic() < answer[1] else None

    def _take(self, take: Callable[[], Status]) -> None:
        self._answer = take(), time.monotonic() + TOLD_SECONDS
        self._reporter.progress(within_seconds=0.0)
