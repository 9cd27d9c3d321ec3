"""What an agent reports of itself: the model of `status.agent`, but for what is read while it is written."""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from agent.environment import Environment
from agent.facts.check_report import CheckReport
from agent.facts.failure import Failure
from agent.facts.timestamps import rfc3339
from agent.monitor.pace import Slowdown
from agent.monitor.series import Series
from agent.monitor.stepping import Progress, RoundProgress
from crds.protocol import (
    PROTOCOL,
    AcceleratorsStatus,
    AgentState,
    CheckpointTroubleStatus,
    DepartureStatus,
)


@dataclass(frozen=True)
class Departure:
    """All processes of a round left after the same step, by vote."""

    round: int
    step: int

    def to_status(self) -> DepartureStatus:
        return {"round": self.round, "step": self.step}


@dataclass(frozen=True)
class Report:
    """Everything that changes in what the agent reports; each write carries all of it."""

    state: AgentState
    since: datetime
    observed_round: int = 0
    failure: Failure | None = None
    progress: Progress | None = None
    rounds: tuple[RoundProgress, ...] = ()
    check: CheckReport | None = None
    departure: Departure | None = None
    """The last one of this agent."""
    result: str | None = None
    """What rank 0 has left of the round that ended well."""
    trouble: CheckpointTroubleStatus | None = None
    series: Series | None = None
    slow: Slowdown | None = None

    @property
    def failures(self) -> int:
        """How many failures have been reported by now."""
        return self.failure.sequence if self.failure else 0

    def to_status(self) -> dict[str, Any]:
        return {
            "state": self.state.value,
            "since": rfc3339(self.since),
            "observedRound": self.observed_round,
            "failure": self.failure.to_status() if self.failure else None,
            "progress": self.progress.to_status() if self.progress else None,
            "rounds": [round_.to_status() for round_ in self.rounds],
            "check": self.check.to_status() if self.check else None,
            "departure": self.departure.to_status() if self.departure else None,
            "result": self.result,
            "checkpointTrouble": self.trouble,
            "series": self.series.to_status() if self.series else None,
            "slow": self.slow.to_status() if self.slow else None,
        }


@dataclass(frozen=True)
class Facts:
    """What stays the same in the agent's reports for its life."""

    store_port: int
    local_world_size: int
    accelerators: AcceleratorsStatus

    def to_status(self, me: Environment) -> dict[str, Any]:
        return {
            "protocol": PROTOCOL,
            "incarnation": me.incarnation,
            "podUid": me.pod_uid,
            "address": me.pod_ip,
            "storePort": self.store_port,
            "localWorldSize": self.local_world_size,
            "accelerators": self.accelerators,
        }


class PendingReports:
    """The reports that are still to be written, oldest first: at most one for each failure.

    It is not thread-safe.
    """

    def __init__(self) -> None:
        self._reports: deque[Report] = deque()

    def put(self, report: Report) -> None:
        """Add a report. It takes the place of the last one, unless it has a failure more."""
        if self._reports and self._reports[-1].failures == report.failures:
            self._reports.pop()
        self._reports.append(report)

    def first(self) -> Report | None:
        """Return the oldest; None if all have been written."""
        return self._reports[0] if self._reports else None

    def written(self, report: Report) -> None:
        """Forget `report`, unless a newer one took its place meanwhile."""
        if self._reports and self._reports[0] is report:
            self._reports.popleft()
