"""Answers whoever asks where the training processes are: `dlr job stacks`."""

from __future__ import annotations

from collections.abc import Callable
from datetime import datetime, timezone

from agent.monitor.hang_guard import HangGuard
from agent.processes.processes import TrainingProcesses
from agent.session import Session
from agent.supervision.asked import Asked
from crds import agent_report
from crds.agent_report import MAX_STACKS, NATIVE


class AskedStacks(Asked[agent_report.AskedStacks]):
    """Takes the stacks of the processes that run."""

    def __init__(self, session: Session, guard: HangGuard) -> None:
        super().__init__(session, session.asks_for_stacks, "dlr-asked-stacks")
        self._guard = guard
        session.reporter.follow_section("asked_stacks", self.to_status)

    def taker(self, request: str, processes: TrainingProcesses) -> Callable[[], agent_report.AskedStacks]:
        stacks_of = self._guard.stacks_of(processes.alive(), native=request.endswith(NATIVE))

        def take() -> agent_report.AskedStacks:
            return agent_report.AskedStacks(
                request, datetime.now(timezone.utc), tuple(stacks_of()[:MAX_STACKS])
            )

        return take
