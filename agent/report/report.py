"""What an agent reports of itself: what it knows for good, what changes, and what is read for each report."""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from agent.environment import Environment
from agent.facts.failure import Failure
from crds.agent_report import (
    PROTOCOL,
    Accelerators,
    AgentCheck,
    AgentCheckpointTrouble,
    AgentReport,
    AgentState,
    Departure,
    RoundProgress,
    Series,
    Slow,
    StepProgress,
)


@dataclass(frozen=True)
class Report:
    """Everything that changes in what the agent reports; each write carries all of it."""

    state: AgentState
    since: datetime
    observed_round: int = 0
    failure: Failure | None = None
    progress: StepProgress | None = None
    rounds: tuple[RoundProgress, ...] = ()
    check: AgentCheck | None = None
    departure: Departure | None = None
    """The last one of this agent."""
    result: str | None = None
    """What rank 0 has left of the round that ended well."""
    trouble: AgentCheckpointTrouble | None = None
    series: Series | None = None
    slow: Slow | None = None

    @property
    def failures(self) -> int:
        """How many failures have been reported by now."""
        return self.failure.sequence if self.failure else 0


@dataclass(frozen=True)
class Facts:
    """What stays the same in the agent's reports for its life."""

    store_port: int
    local_world_size: int
    accelerators: Accelerators


def whole(me: Environment, facts: Facts, report: Report, sections: Mapping[str, Any]) -> AgentReport:
    """Return `status.agent`.

    Args:
        sections: the parts that are read while a report is written, by field.
    """
    return AgentReport(
        protocol=PROTOCOL,
        incarnation=me.incarnation,
        pod_uid=me.pod_uid,
        address=me.pod_ip,
        store_port=facts.store_port,
        local_world_size=facts.local_world_size,
        accelerators=facts.accelerators,
        state=report.state,
        since=report.since,
        observed_round=report.observed_round,
        failure=report.failure,
        progress=report.progress,
        rounds=report.rounds,
        check=report.check,
        departure=report.departure,
        result=report.result,
        checkpoint_trouble=report.trouble,
        series=report.series,
        slow=report.slow,
        **sections,
    )


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
