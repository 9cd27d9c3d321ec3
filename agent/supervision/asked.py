"""Answers to what somebody asks of a job's agents by an annotation: `dlr job stacks`, `dlr job profile`.

Each new request is answered once. A request that stands there already when the agent comes was for others.
"""

from __future__ import annotations

import threading
import time
from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass
from datetime import datetime, timezone
from typing import Generic, TypeVar

from agent.logs import write_parts
from agent.monitor.hang_guard import HangGuard
from agent.monitor.profile import Profile, ProfileError, Subject, take
from agent.processes.processes import TrainingProcesses
from crds import agent_report
from crds.agent_report import MAX_PROFILE_NOTE, MAX_PROFILE_SECONDS, MAX_REQUEST, MAX_STACKS, NATIVE

Status = TypeVar("Status")

TOLD_SECONDS = 60.0
"""How long an answer is part of the agent's reports."""


class Asked(ABC, Generic[Status]):
    """Gives one kind of answer.

    It is taken in a thread of its own, since that may take seconds, in which a process may fail; it is
    reported for a while, and then left out again, so no status keeps it.

    Args:
        guard: of the training processes.
        answered: the request that stood there when the agent came; "" if there was none.
        name: of the thread.
    """

    def __init__(self, guard: HangGuard, answered: str, name: str) -> None:
        self._guard = guard
        self._answered = answered
        self._name = name
        self._taking: threading.Thread | None = None
        self._answer: tuple[Status, float] | None = None
        """The answer, and until when it is reported (CLOCK_MONOTONIC)."""

    @abstractmethod
    def taker(self, request: str, processes: TrainingProcesses) -> Callable[[], Status] | None:
        """Return what takes the answer; None if there is none to give here."""

    def look(self, request: str, processes: TrainingProcesses, report: Callable[[], None]) -> None:
        """Begin to answer if there is a new request. Call it every second or so, in one thread.

        Args:
            request: what the job asks now; "" if there is nothing.
            processes: of this agent.
            report: has a report written, once there is an answer.
        """
        if request in ("", self._answered) or (self._taking is not None and self._taking.is_alive()):
            return
        self._answered = request
        taker = self.taker(request, processes)
        if taker is None:
            return
        self._taking = threading.Thread(target=self._take, args=(taker, report), name=self._name, daemon=True)
        self._taking.start()

    def to_status(self) -> Status | None:
        """Return the last answer; None if there is none, or it was reported for long enough."""
        answer = self._answer
        return answer[0] if answer is not None and time.monotonic() < answer[1] else None

    def _take(self, taker: Callable[[], Status], report: Callable[[], None]) -> None:
        self._answer = taker(), time.monotonic() + TOLD_SECONDS
        report()


class AskedStacks(Asked[agent_report.AskedStacks]):
    """Takes the stacks of the processes that run."""

    def __init__(self, guard: HangGuard, answered: str = "") -> None:
        super().__init__(guard, answered, "dlr-asked-stacks")

    def taker(self, request: str, processes: TrainingProcesses) -> Callable[[], agent_report.AskedStacks]:
        stacks_of = self._guard.stacks_of(processes.alive(), native=request.endswith(NATIVE))
        return lambda: agent_report.AskedStacks(
            request, datetime.now(timezone.utc), tuple(stacks_of()[:MAX_STACKS])
        )


class AskedProfile(Asked[agent_report.Profile]):
    """Profiles a process, if it runs here."""

    def __init__(self, guard: HangGuard, answered: str = "") -> None:
        super().__init__(guard, answered, "dlr-profile")

    def taker(self, request: str, processes: TrainingProcesses) -> Callable[[], agent_report.Profile] | None:
        wanted = ProfileRequest.parse(request)
        subject = self._guard.subject_of(processes.alive(), wanted.rank) if wanted is not None else None
        if wanted is None or subject is None:
            return None
        return lambda: _profile(request, wanted, subject)


@dataclass(frozen=True)
class ProfileRequest:
    """`<what asked>/<rank>/<seconds>/<torch.profiler, py-spy, or nothing>`."""

    rank: int
    seconds: float
    by: str

    @classmethod
    def parse(cls, text: str) -> ProfileRequest | None:
        """Return the request; None if this version does not understand it."""
        try:
            _, rank, seconds, by = text.split("/")
            return cls(int(rank), min(max(float(seconds), 0.0), MAX_PROFILE_SECONDS), by)
        except ValueError:
            return None


def _profile(text: str, request: ProfileRequest, subject: Subject) -> agent_report.Profile:
    try:
        profile = take(subject, request.seconds, request.by)
    except ProfileError as error:
        profile = Profile(request.by, 0.0, b"", str(error))
    try:
        write_parts(text[:MAX_REQUEST], profile.data)
    except OSError as error:
        profile = Profile(profile.by, profile.seconds, b"", f"the profile is not in the Pod's log: {error}")
    note = profile.note[:MAX_PROFILE_NOTE]
    return agent_report.Profile(text, profile.by, profile.seconds, len(profile.data), note)
