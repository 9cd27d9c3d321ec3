"""Answers who asks for a profile of one rank: `dlr job profile`, by an annotation of the job.

Taken in a thread of its own, told for a while, and then left out again, so no status keeps it.
"""

from __future__ import annotations

import base64
import threading
import time
from dataclasses import dataclass

from agent.monitor.hang_guard import HangGuard
from agent.monitor.profile import Profile, ProfileError, Subject, take
from agent.session import Session
from agent.supervision.processes import TrainingProcesses
from crds.protocol import MAX_PROFILE_NOTE, MAX_PROFILE_SECONDS, ProfileStatus

TOLD_SECONDS = 60.0
"""How long the answer is part of the agent's reports."""


@dataclass(frozen=True)
class Request:
    """`<what asked>/<rank>/<seconds>/<torch.profiler, py-spy, or nothing>`."""

    rank: int
    seconds: float
    by: str

    @classmethod
    def parse(cls, text: str) -> Request | None:
        """None of what this version does not understand."""
        try:
            _, rank, seconds, by = text.split("/")
            return cls(int(rank), min(max(float(seconds), 0.0), MAX_PROFILE_SECONDS), by)
        except ValueError:
            return None


class AskedProfile:
    """Profiles a process that runs here, once for each new request.

    A request that stands there already when the agent comes was for others.
    """

    def __init__(self, session: Session, guard: HangGuard) -> None:
        self._session = session
        self._guard = guard
        self._answered = session.asks_for_profile()
        self._taking: threading.Thread | None = None
        self._answer: tuple[ProfileStatus, float] | None = None
        """It, and until when it is told (CLOCK_MONOTONIC)."""
        session.reporter.follow_profile(self.to_status)

    def look(self, processes: TrainingProcesses) -> None:
        """Begin if there is a new request for a process of this agent. Call it every second or so."""
        text = self._session.asks_for_profile()
        if text in ("", self._answered) or (self._taking is not None and self._taking.is_alive()):
            return
        self._answered = text
        request = Request.parse(text)
        subject = self._guard.subject_of(processes.alive(), request.rank) if request is not None else None
        if request is None or subject is None:
            return
        arguments = text, request, subject
        self._taking = threading.Thread(target=self._take, args=arguments, name="dlr-profile", daemon=True)
        self._taking.start()

    def to_status(self) -> ProfileStatus | None:
        """Return the last answer; None if there is none, or it was told for long enough."""
        answer = self._answer
        return answer[0] if answer is not None and time.monotonic() < answer[1] else None

    def _take(self, text: str, request: Request, subject: Subject) -> None:
        try:
            profile = take(subject, request.seconds, request.by)
        except ProfileError as error:
            profile = Profile(request.by, 0.0, b"", str(error))
        status: ProfileStatus = {
            "request": text,
            "by": profile.by,
            "seconds": round(profile.seconds, 3),
            "data": base64.b64encode(profile.data).decode(),
            "note": profile.note[:MAX_PROFILE_NOTE],
        }
        self._answer = status, time.monotonic() + TOLD_SECONDS
        self._session.reporter.progress(within_seconds=0.0)
