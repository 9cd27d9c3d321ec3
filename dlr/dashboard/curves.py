"""A job's curves: step time, the script's numbers, the usage of rank 0's Pod and of all Pods. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from datetime import datetime
from statistics import fmean

from crds import names
from dlr.job import report
from dlr.job.case import Case
from dlr.job.wording import counted_by_thousands, parse_time, significant
from dlr.kube.api import JSON

GIB = 2**30
THOUSAND = 1_000
NO_PAST: JSON = {"at": [], "steps": [], "seconds": [], "numbers": {}, "usage": []}


@dataclass(frozen=True)
class UsageFigure:
    """One figure of `status.agent.usage`."""

    name: str
    label: str
    unit: str
    scale: float = 1.0
    """Size of the unit, in the figure's own unit."""


FIGURES = (
    UsageFigure("cpuCores", "CPU", "cores"),
    UsageFigure("memoryBytes", "Memory", "GiB", GIB),
    UsageFigure("gpuShare", "GPU", "%", 0.01),
    UsageFigure("gpuMemoryBytes", "GPU memory", "GiB", GIB),
)


def past_of(job: JSON, reports: Sequence[tuple[JSON, JSON]], submitted: datetime) -> JSON:
    """Return the series of rank 0's agent, or the newest of the others', as columns.

    Args:
        reports: reports of the job's workers, as in `Case.reports`.
    """
    found = [(worker["spec"]["index"], series) for worker, each in reports if (series := _series_of(each))]
    first = min(report.ranks(job), default=None)
    _, series = max(found, key=lambda each: (each[0] == first, each[1][-1]["time"]), default=(None, []))
    if not series:
        return NO_PAST
    numbers = dict.fromkeys(name for point in series for name in point.get("numbers") or ())
    times = [(parse_time(point["time"]) or submitted) - submitted for point in series]
    return {
        "at": [round(each.total_seconds(), 1) for each in times],
        "steps": [point["step"] for point in series],
        "seconds": [float(f"{point['secondsPerStep']:.3g}") for point in series],
        "numbers": {name: [(point.get("numbers") or {}).get(name) for point in series] for name in numbers},
        "usage": [drawn for figure in FIGURES if (drawn := _usage_curve(figure, series))["values"]],
    }


def _series_of(agent: JSON) -> list[JSON]:
    """Return the points of a report, with the newest window at the end."""
    series = agent.get("series") or {}
    points, latest = list(series.get("points") or ()), series.get("latest")
    if latest is not None and not (points and points[-1]["step"] >= latest["step"]):
        points.append(latest)
    return points


def _usage_curve(figure: UsageFigure, series: Iterable[JSON]) -> JSON:
    """Return a figure's values along the series; empty if there are fewer than two."""
    values = [scaled((point.get("usage") or {}).get(figure.name), figure) for point in series]
    is_curve = sum(value is not None for value in values) > 1
    return {"label": figure.label, "unit": figure.unit, "values": values if is_curve else []}


def scaled(value: float | None, figure: UsageFigure) -> float | None:
    """Return a figure in its unit, with three digits."""
    return None if value is None else float(f"{value / figure.scale:.3g}")


def usage_of(agent: JSON) -> list[float | None]:
    """Return the present usage of a worker's Pod: a value for each of FIGURES."""
    usage = agent.get("usage") or {}
    return [scaled(usage.get(figure.name), figure) for figure in FIGURES]


def usage_line(case: Case) -> str:
    """Describe the present usage of all the job's Pods; empty without reports, and after the job's end."""
    found = [
        usage
        for worker, agent in case.reports
        if worker["spec"]["type"] == names.WORKER and (usage := agent.get("usage"))
    ]
    if report.is_finished(case.job) or not found:
        return ""
    cpu, memory, shares, filled = (_column(figure, found) for figure in FIGURES)
    parts = [f"{_total(cpu)} cores"] if cpu else []
    parts += [f"{_total(memory)} GiB of memory"] if memory else []
    if shares:
        least = f", {min(shares):.0f} % at least" if len(shares) > 1 else ""
        parts.append(f"GPUs {fmean(shares):.0f} % busy{least}")
    parts += [f"{significant(max(filled))} GiB in use on the fullest GPU"] if filled else []
    return f"{counted_by_thousands(len(found), 'Pod')} now: {'; '.join(parts)}"


def _column(figure: UsageFigure, found: Iterable[JSON]) -> list[float]:
    values = (usage.get(figure.name) for usage in found)
    return [value / figure.scale for value in values if value is not None]


def _total(values: Iterable[float]) -> str:
    total = sum(values)
    return significant(total) if total < THOUSAND else f"{total:,.0f}"
