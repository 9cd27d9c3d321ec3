"""Answers whoever asks where the training processes are: `dlr job stacks`."""

from __future__ import annotations

from collections.abc import Callable
from datetime import datetime, timezone

from agent.facts.timestamps import rfc3339
from agent.monitor.hang_guard import HangGuard
from agent.processes.processes import TrainingProcesses
from agent.session import Session
from agent.supervision.asked import Asked
from crds.protocol import MAX_STACKS, NATIVE, AskedStacksStatus


class AskedStacks(Asked[AskedStacksStatus]):
    """Takes the stacks of the processes that run."""

    def __init__(self, session: Session, guard: HangGuard) -> None:
        super().__init__(session, session.asks_for_stacks, "dlr-asked-stacks")
        self._guard = guard
        session.reporter.follow_asked_stacks(self.to_status)

    def taker(self, request: str, processes: TrainingProcesses) -> Callable[[], AskedStacksStatus]:
        stacks_of = self._guard.stacks_of(processes.alive(), native=request.endswith(NATIVE))

        def take() -> AskedStacksStatus:
            stacks = [stack.to_status() for stack in stacks_of()[:MAX_STACKS]]
            return {"request": request, "time": rfc3339(datetime.now(timezone.utc)), "stacks": stacks}

        return take
