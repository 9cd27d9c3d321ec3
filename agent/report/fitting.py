"""Fits a report into its size: what people read is shortened, in this order, and no fact that decides."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

from crds.agent_report import MAX_REPORT_BYTES, AgentFailure, AgentReport, RankStack

SHORT = 256
"""Characters of a text that is shortened."""
TOO_LARGE = '{"error": "the result is larger than a report: save it"}'


def fitting(report: AgentReport) -> dict[str, Any]:
    """Return the report as JSON-ready data of at most MAX_REPORT_BYTES."""
    wire = report.to_wire()
    for shorten in STEPS:
        if size_bytes(wire) <= MAX_REPORT_BYTES:
            break
        report = shorten(report)
        wire = report.to_wire()
    return wire


def size_bytes(wire: dict[str, Any]) -> int:
    """Return the size of its JSON in UTF-8."""
    return len(json.dumps(wire, ensure_ascii=False, separators=(",", ":")).encode(errors="replace"))


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
    return tuple(replace(stack, frames=stack.frames[:SHORT]) for stack in stacks)


def _with_short_log(report: AgentReport) -> AgentReport:
    return _of_failure(report, lambda failure: replace(failure, log_tail=failure.log_tail[-SHORT:]))


def _of_probes(report: AgentReport, change: Callable[[Any], Any]) -> AgentReport:
    check = report.check
    if check is None:
        return report
    local, pairs = tuple(map(change, check.local)), tuple(map(change, check.pairs))
    return replace(report, check=replace(check, local=local, pairs=pairs))


def _with_short_probes(report: AgentReport) -> AgentReport:
    return _of_probes(
        report, lambda probe: replace(probe, notes=(), faults=tuple(each[:SHORT] for each in probe.faults))
    )


def _with_endings_alone(report: AgentReport) -> AgentReport:
    return _of_probes(report, lambda probe: replace(probe, reason="", figures={}, faults=()))


def _without_reasons(report: AgentReport) -> AgentReport:
    return replace(report, shards=tuple(replace(each, reason="") for each in report.shards or ()) or None)


def _with_short_message(report: AgentReport) -> AgentReport:
    return _of_failure(report, lambda failure: replace(failure, message=failure.message[:SHORT]))


def _of_failure(report: AgentReport, change: Callable[[AgentFailure], AgentFailure]) -> AgentReport:
    return report if report.failure is None else replace(report, failure=change(report.failure))


STEPS: tuple[Callable[[AgentReport], AgentReport], ...] = (
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
    _with_endings_alone,
)
