"""Answers to what somebody asks of a job's agents by an annotation: `dlr job stacks`, `dlr job profile`.

Each new request is answered once. A request that stands there already when the agent comes was for others.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from datetime import datetime, timezone
from typing import Generic, TypeVar

from agent.logs import write_parts
from agent.monitor.hang_guard import HangGuard
from agent.monitor.profile import Profile, ProfileError, Subject, take
from agent.processes.processes import TrainingProcesses
from crds import agent_report
from crds.agent_report import (
    MAX_PROFILE_NOTE,
    MAX_PROFILE_SECONDS,
    MAX_REQUEST,
    MAX_STACKS,
    NATIVE,
    AskedStacks,
)

Status = TypeVar("Status")
Taker = Callable[[str, TrainingProcesses], Callable[[], Status] | None]

TOLD_SECONDS = 60.0
"""How long an answer is part of the agent's reports."""


class Asked(Generic[Status]):
    """Gives one kind of answer.

    It is taken in a thread of its own, since that may take seconds, in which a process may fail; it is
    reported for a while, and then left out again, so no status keeps it.

    Args:
        taker: returns what takes the answer to a request; None if there is none to give here.
        answered: the request that stood there when the agent came; "" if there was none.
    """

    def __init__(self, taker: Taker[Status], answered: str, name: str) -> None:
        self._taker = taker
        self._answered = answered
        self._name = name
        self._taking: threading.Thread | None = None
        self._answer: tuple[Status, float] | None = None
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
        taker = self._taker(request, processes)
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


def asked_stacks(guard: HangGuard, answered: str = "") -> Asked[AskedStacks]:
    """Return what takes the stacks of the processes that run."""

    def taker(request: str, processes: TrainingProcesses) -> Callable[[], AskedStacks]:
        stacks_of = guard.stacks_of(processes.alive(), native=request.endswith(NATIVE))
        return lambda: AskedStacks(request, datetime.now(timezone.utc), tuple(stacks_of()[:MAX_STACKS]))

    return Asked(taker, answered, "dlr-asked-stacks")


def asked_profile(guard: HangGuard, answered: str = "") -> Asked[agent_report.Profile]:
    """Return what profiles a process, if it runs here."""

    def taker(request: str, processes: TrainingProcesses) -> Callable[[], agent_report.Profile] | None:
        wanted = ProfileRequest.parse(request)
        subject = guard.subject_of(processes.alive(), wanted.rank) if wanted is not None else None
        if wanted is None or subject is None:
            return None
        return lambda: _profile(request, wanted, subject)

    return Asked(taker, answered, "dlr-profile")


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
