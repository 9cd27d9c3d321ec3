"""Answers who asks for a profile of one rank: `dlr job profile`."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from agent.logs import write_parts
from agent.monitor.hang_guard import HangGuard
from agent.monitor.profile import Profile, ProfileError, Subject, take
from agent.processes.processes import TrainingProcesses
from agent.session import Session
from agent.supervision.asked import Asked
from crds import agent_report
from crds.agent_report import MAX_PROFILE_NOTE, MAX_PROFILE_SECONDS, MAX_REQUEST


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


class AskedProfile(Asked[agent_report.Profile]):
    """Profiles a process, if it runs here."""

    def __init__(self, session: Session, guard: HangGuard) -> None:
        super().__init__(session, session.asks_for_profile, "dlr-profile")
        self._guard = guard
        session.reporter.follow_section("profile", self.to_status)

    def taker(self, request: str, processes: TrainingProcesses) -> Callable[[], agent_report.Profile] | None:
        wanted = Request.parse(request)
        subject = self._guard.subject_of(processes.alive(), wanted.rank) if wanted is not None else None
        if wanted is None or subject is None:
            return None
        return lambda: _profile(request, wanted, subject)


def _profile(text: str, request: Request, subject: Subject) -> agent_report.Profile:
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
