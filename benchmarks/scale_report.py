"""Report benchmarks/results/scale.md, from the figures of benchmarks/scale.py."""

from __future__ import annotations

import importlib.metadata
import math
import os
import platform
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import date
from typing import Any

from benchmarks.virtual_cluster import LATENCY_SECONDS
from benchmarks.virtual_nodes import AGENT_START_SECONDS, PODS_A_SECOND, RESTART_SECONDS

FIT_FROM = 1_000
"""Number of workers from which growth is fitted; below, constant costs hide it."""

STEPS_OF_A_ROLL = 10
RACK = 40

Figures = Mapping[str, float]
"""Figures by `<section>/<figure>`."""
Results = Mapping[int, Figures]
"""Figures by the number of workers."""


@dataclass(frozen=True)
class Table:
    figure: str
    title: str
    unit: float = 1.0
    """Unit shown, in units of the figure."""
    digits: int = 0
    least: float = 0.0
    """Rows with only smaller figures are left out."""


TABLES = (
    Table("cpu", "CPU seconds", digits=2),
    Table("stretch", "The longest that the event loop was blocked, CPU milliseconds", unit=1e-3),
    Table("looks", "Looks at the job", least=2),
    Table("writes", "API writes a worker, by the controller", digits=1, least=0.1),
    Table("virtual", "Seconds that it lasts, in virtual time", least=4),
)
SIZES = (
    Table("job", "ElasticJob, all train, KB", unit=1e3, digits=1),
    Table("roll", "ElasticJob at its largest in a roll, KB", unit=1e3, digits=1),
    Table("oom", "ElasticJob at its largest in a mass OOM, KB", unit=1e3, digits=1),
    Table("scrape", "a scrape, KB", unit=1e3),
    Table("check", "NodeCheck at its largest, KB", unit=1e3, digits=1),
    Table("silent", "a silent worker is found after, s", digits=1),
    Table("resident", "memory of a controller that has looked at everything, MB", unit=1e6),
)


def exponent(figures: Mapping[int, float]) -> float | None:
    """Return the exponent of size by least squares of the logarithms; None with fewer than two sizes."""
    points = [(math.log(size), math.log(figure)) for size, figure in figures.items() if figure > 0]
    points = [(x, y) for x, y in points if x >= math.log(FIT_FROM)]
    if len(points) < 2:
        return None
    mean_x, mean_y = (sum(column) / len(points) for column in zip(*points, strict=True))
    spread: float = sum((x - mean_x) ** 2 for x, _ in points)
    slope: float = sum((x - mean_x) * (y - mean_y) for x, y in points) / spread
    return slope


def tables(results: Results) -> str:
    """Return the tables of all measurements."""
    sizes = sorted(results)
    sections = list(dict.fromkeys(key.partition("/")[0] for size in sizes for key in results[size]))
    sections = [section for section in sections if section != "sizes"]
    parts = []
    for table in TABLES:
        keys = {section: f"{section}/{table.figure}" for section in sections}
        parts += [_head(table.title, sizes), *_rows(table, keys, results), ""]
    parts.append(_head("Sizes", sizes))
    for table in SIZES:
        parts += _rows(table, {table.title: f"sizes/{table.figure}"}, results)
    return "\n".join(parts)


def _head(title: str, sizes: Sequence[int]) -> str:
    rule = "|---|" + "--:|" * (len(sizes) + 1)
    return f"| {title} | {' | '.join(f'{size:,}' for size in sizes)} | exponent |\n{rule}"


def _rows(table: Table, keys: Mapping[str, str], results: Results) -> list[str]:
    lines = []
    for title, key in keys.items():
        known = {size: results[size][key] for size in sorted(results) if key in results[size]}
        if all(figure < table.least for figure in known.values()):
            continue
        cells = [
            f"{known[size] / table.unit:,.{table.digits}f}" if size in known else ""
            for size in sorted(results)
        ]
        found = exponent(known)
        lines.append(f"| {title} | {' | '.join(cells)} | {'' if found is None else f'{found:.2f}'} |")
    return lines


def conditions(jobs: int) -> str:
    """Return date, machine and versions of a measurement with `jobs` cells at a time."""
    versions = ", ".join(f"{name} {importlib.metadata.version(name)}" for name in ("pydantic", "orjson"))
    return (
        f"Measured on {date.today()} with {os.cpu_count()} CPU cores ({jobs} cells at a time, "
        f"load average {os.getloadavg()[2]:.1f}),\n"
        f"{platform.system()}, Python {platform.python_version()}, {versions}."
    )


def report(known: Mapping[str, Any]) -> str:
    """Return the page."""
    return f"""# What the controller costs, by the number of workers

All controllers, with their informers and queues, over an API server in memory: what HTTP and TLS cost, and
what the machines of API server, kubelets and agents compute, is left out. Time is virtual: it passes by what
the controller computes, as if it had a processor for itself, and otherwise jumps to whatever comes next. A
request is answered after {LATENCY_SECONDS * 1000:g} ms, {PODS_A_SECOND:g} Pods are bound a second,
an agent is ready {AGENT_START_SECONDS:g} s after that, and all agents tell of a new world within
{RESTART_SECONDS:g} s. There is a node for each worker. The exponent is fitted by least squares from
{FIT_FROM:,} workers on (1: twice the workers, twice the cost).

{tables({int(size): figures for size, figures in known["figures"].items()})}

* How long the event loop *was blocked* leaves out Python's garbage collector, which looks at what API server,
  kubelets and agents have made as well, since they are in the same process here.
* A *steady look* at a job of which all workers train: nothing has changed since the last one. The *first
  look* is that of a controller that has just started. A *take-over* is a controller that starts, lists
  everything and looks at all of it.
* A *start* lasts from `kubectl apply` until all train. A *roll* gives all workers new resources, in
  {STEPS_OF_A_ROLL} node units, never with fewer workers than before. *OOM*: the Pods of {RACK} workers (a
  rack), of every hundredth, or of all are killed for memory at once; until all train again with more.
* A start costs four writes for each worker (ElasticWorker, Lease, Pod, status), and some thirty for the job.
* *Heartbeats* are those of 21,000 workers, with a Lease each, from when a controller has formed the *worlds
  of agents that wait* for one; the *check* is a NodeCheck in Pods of its own, whose agents answer at once.

{known["measured"]}
To run it again, a part of it, or one cell:

    python -m benchmarks.scale [--jobs 8] [--out /tmp/scale]
    python -m benchmarks.scale [--sizes 100 1000] [--only steady roll]
    python -m benchmarks.scale --cell roll 1000
"""
