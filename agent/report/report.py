"""What an agent reports of itself: what it knows for good, what changes, and what is read for each report."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, fields, replace
from datetime import datetime
from typing import Any, cast

from agent.environment import Environment
from agent.facts.failure import LocalFailure
from crds.agent_report import (
    MAX_REPORT_BYTES,
    PROTOCOL,
    Accelerators,
    AgentCheck,
    AgentCheckpointTrouble,
    AgentFailure,
    AgentReport,
    AgentState,
    AskedStacks,
    CheckpointMemory,
    Departure,
    LivedOn,
    Network,
    RankStack,
    ReplicasReport,
    RoundArrival,
    RoundProgress,
    Series,
    ShardsReport,
    SilentPeer,
    Slow,
    StepProgress,
    Usage,
)
from crds.texts import all_plain, ending, json_bytes, shortened

SHORT = 256
"""Bytes, in JSON, of a text that is shortened."""
TOO_LARGE = '{"error": "the result is larger than a report: save it"}'


@dataclass(frozen=True)
class ReportBody:
    """Everything that changes in what the agent reports; each write carries all of it."""

    state: AgentState
    since: datetime
    observed_round: int = 0
    failure: LocalFailure | None = None
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
class AgentFacts:
    """What stays the same in the agent's reports for its life."""

    store_port: int
    local_world_size: int
    accelerators: Accelerators


@dataclass(frozen=True)
class Sections:
    """What makes the parts of a report that are read while it is written, by field of `AgentReport`."""

    usage: Callable[[], Usage | None] | None = None
    start: Callable[[], RoundArrival | None] | None = None
    network: Callable[[], Network | None] | None = None
    memory: Callable[[], CheckpointMemory] | None = None
    shards: Callable[[], tuple[ShardsReport, ...] | None] | None = None
    replicas: Callable[[], ReplicasReport | None] | None = None
    asked_stacks: Callable[[], AskedStacks | None] | None = None
    lived_on: Callable[[], LivedOn | None] | None = None
    lingers: Callable[[], str | None] | None = None
    silent_peers: Callable[[], tuple[SilentPeer, ...] | None] | None = None

    def made_by(self, make: Callable[[str, Callable[[], Any]], Any]) -> dict[str, Any]:
        """Return the parts by field, each made by `make` of its name and what makes it."""
        makers = {part.name: getattr(self, part.name) for part in fields(self)}
        return {name: make(name, maker) for name, maker in makers.items() if maker is not None}


NO_SECTIONS = Sections()


def whole(
    me: Environment, facts: AgentFacts, report: ReportBody, sequence: int, sections: Mapping[str, Any]
) -> AgentReport:
    """Return `status.agent`.

    Args:
        sequence: the number of the write.
        sections: the parts that are read while a report is written, by field.
    """
    return AgentReport(
        protocol=PROTOCOL,
        incarnation=me.incarnation,
        sequence=sequence,
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


def fitting(report: AgentReport) -> dict[str, Any]:
    """Return the report as JSON-ready data of at most MAX_REPORT_BYTES, as the API server writes it."""
    wire = all_plain(report.to_wire())
    for shorten in STEPS:
        if json_bytes(wire) <= MAX_REPORT_BYTES:
            break
        report = shorten(report)
        wire = all_plain(report.to_wire())
    return cast(dict[str, Any], wire)


def _without_past_usage(report: AgentReport) -> AgentReport:
    series = report.series
    if series is None:
        return report
    points = tuple(replace(point, usage={}) for point in series.points)
    return replace(report, series=replace(series, points=points))


def _without_past(report: AgentReport) -> AgentReport:
    series = report.series
    return report if series is None else replace(report, series=replace(series, points=series.points[-8:]))


def _with_short_stacks(report: AgentReport) -> AgentReport:
    asked = report.asked_stacks
    return replace(
        _of_failure(report, lambda failure: replace(failure, stacks=_short(failure.stacks))),
        asked_stacks=None if asked is None else replace(asked, stacks=_short(asked.stacks)),
    )


def _short(stacks: Sequence[RankStack]) -> tuple[RankStack, ...]:
    return tuple(replace(stack, frames=shortened(stack.frames, SHORT)) for stack in stacks)


def _with_short_log(report: AgentReport) -> AgentReport:
    return _of_failure(report, lambda failure: replace(failure, log_tail=ending(failure.log_tail, SHORT)))


def _of_probes(report: AgentReport, change: Callable[[Any], Any]) -> AgentReport:
    check = report.check
    if check is None:
        return report
    local, pairs = tuple(map(change, check.local)), tuple(map(change, check.pairs))
    return replace(report, check=replace(check, local=local, pairs=pairs))


def _with_short_probes(report: AgentReport) -> AgentReport:
    return _of_probes(
        report,
        lambda probe: replace(probe, notes=(), faults=tuple(shortened(each, SHORT) for each in probe.faults)),
    )


def _with_endings_alone(report: AgentReport) -> AgentReport:
    return _of_probes(report, lambda probe: replace(probe, reason="", figures={}, faults=()))


def _without_reasons(report: AgentReport) -> AgentReport:
    return replace(report, shards=tuple(replace(each, reason="") for each in report.shards or ()) or None)


def _with_short_notes(report: AgentReport) -> AgentReport:
    trouble = report.checkpoint_trouble
    return replace(
        report,
        checkpoint_trouble=trouble and replace(trouble, message=shortened(trouble.message, SHORT)),
    )


def _with_short_message(report: AgentReport) -> AgentReport:
    return _of_failure(report, lambda failure: replace(failure, message=shortened(failure.message, SHORT)))


def _of_failure(report: AgentReport, change: Callable[[AgentFailure], AgentFailure]) -> AgentReport:
    return report if report.failure is None else replace(report, failure=change(report.failure))


STEPS: tuple[Callable[[AgentReport], AgentReport], ...] = (
    _without_past_usage,
    _without_past,
    _with_short_stacks,
    _with_short_log,
    lambda report: replace(report, asked_stacks=None),
    _with_short_probes,
    _with_short_message,
    lambda report: replace(report, series=None),
    lambda report: _of_failure(report, lambda failure: replace(failure, stacks=())),
    lambda report: report if report.result is None else replace(report, result=TOO_LARGE),
    _without_reasons,
    _with_short_notes,
    _with_endings_alone,
)
