"""An agent's report: constant facts, a changing body, and sections that are read for each report."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from agent.environment import Environment
from agent.facts.failure import LocalFailure
from crds.agent_report import (
    MAX_REPORT_BYTES,
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
from crds.texts import all_plain, ending, json_bytes, shortened

SHORT = 256
"""Length of a shortened text, in bytes of JSON."""
TOO_LARGE = '{"error": "the result is larger than a report: save it"}'


@dataclass(frozen=True)
class ReportBody:
    """The changing part of the agent's report; each write has all of it."""

    state: AgentState
    since: datetime
    observed_round: int = 0
    failure: LocalFailure | None = None
    progress: StepProgress | None = None
    rounds: tuple[RoundProgress, ...] = ()
    check: AgentCheck | None = None
    departure: Departure | None = None
    """Last departure of this agent."""
    result: str | None = None
    """Result of the training, reported by rank 0."""
    checkpoint_trouble: AgentCheckpointTrouble | None = None
    series: Series | None = None
    slow: Slow | None = None

    @property
    def failures(self) -> int:
        """Number of failures so far."""
        return self.failure.sequence if self.failure else 0


@dataclass(frozen=True)
class AgentFacts:
    """The constant part of the agent's reports."""

    store_port: int
    local_world_size: int
    accelerators: Accelerators


Sections = Mapping[str, Callable[[], Any]]
"""Functions that return the sections of a report when it is written, by field of `AgentReport`."""


def whole(
    me: Environment, facts: AgentFacts, report: ReportBody, sequence: int, sections: Mapping[str, Any]
) -> AgentReport:
    """Return `status.agent`.

    Args:
        sequence: the number of the write.
        sections: the sections, by field.
    """
    return AgentReport(
        protocol=PROTOCOL,
        incarnation=me.incarnation,
        sequence=sequence,
        pod_uid=me.pod_uid,
        address=me.pod_ip,
        **vars(facts),
        **vars(report),
        **sections,
    )


def fitting(report: AgentReport) -> dict[str, Any]:
    """Return the report as JSON-ready data of at most MAX_REPORT_BYTES, as the API server writes it."""
    wire: dict[str, Any] = all_plain(report.to_wire())
    for paths, change in CUTS:
        if json_bytes(wire) <= MAX_REPORT_BYTES:
            break
        for path in paths:
            _change(wire, path.split("."), change)
    return wire


def _change(value: Any, path: Sequence[str], change: Callable[[Any], Any]) -> None:
    """Change the values at a path, in each item of the lists on the way; missing ones are ignored."""
    name, *rest = path
    for each in value if isinstance(value, list) else [value]:
        if each.get(name) and rest:
            _change(each[name], rest, change)
        elif each.get(name):
            each[name] = change(each[name])


def _short(text: str) -> str:
    return shortened(text, SHORT)


CUTS: tuple[tuple[tuple[str, ...], Callable[[Any], Any]], ...] = (
    (("series.points.usage",), lambda _: {}),
    (("series.points",), lambda points: points[-8:]),
    (("failure.stacks.frames", "askedStacks.stacks.frames"), _short),
    (("failure.logTail",), lambda text: ending(text, SHORT)),
    (("askedStacks",), lambda _: None),
    (("check.local.notes", "check.pairs.notes"), lambda _: []),
    (("check.local.faults", "check.pairs.faults"), lambda faults: [_short(each) for each in faults]),
    (("failure.message",), _short),
    (("series",), lambda _: None),
    (("failure.stacks",), lambda _: []),
    (("result",), lambda _: TOO_LARGE),
    (("shards.reason",), lambda _: ""),
    (("checkpointTrouble.message",), _short),
    (("check.local.reason", "check.pairs.reason"), lambda _: ""),
    (("check.local.faults", "check.pairs.faults"), lambda _: []),
    (("check.local.figures", "check.pairs.figures"), lambda _: {}),
)
"""Paths and how to shorten them if a report is too long, the least important first."""
