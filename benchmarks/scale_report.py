"""The tables of docs/scale.md."""

from __future__ import annotations

import importlib.metadata
import math
import os
import platform
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import date

BETWEEN = frozenset(f"roll {number} of 12" for number in range(2, 12))
"""Sections that the tables leave out; the JSON has them."""
FIT_FROM = 1_000
"""Workers: below, what does not grow hides how the rest does."""

Figures = Mapping[str, float | None]
"""By `<section>/<figure>`; None for what went beyond the budget."""
Results = Mapping[int, Figures]
"""By the number of workers."""


@dataclass(frozen=True)
class Table:
    figure: str
    title: str
    unit: float = 1.0
    """One of what is shown, in that of the figure."""
    digits: int = 0
    least: float = 0.0
    """Rows are left out of which no figure is as large."""


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
    Table("rolls", "ElasticJob at its largest in 12 rolls, KB", unit=1e3, digits=1),
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


def tables(results: Results, before: Results, budget_seconds: float) -> str:
    """All that was measured; in brackets what it was before."""
    sizes = sorted(results)
    sections = list(dict.fromkeys(key.partition("/")[0] for size in sizes for key in results[size]))
    sections = [section for section in sections if section != "sizes" and section not in BETWEEN]
    of_sections = [(table, {s: f"{s}/{table.figure}" for s in sections}) for table in TABLES]
    of_sizes = [(table, {table.title: f"sizes/{table.figure}"}) for table in SIZES]
    parts = []
    for table, keys in of_sections:
        parts += [_head(table.title, sizes), *_rows(table, keys, results, before, budget_seconds), ""]
    parts.append(_head("Sizes", sizes))
    for table, keys in of_sizes:
        parts += _rows(table, keys, results, before, budget_seconds)
    return "\n".join(parts)


def _head(title: str, sizes: Sequence[int]) -> str:
    rule = "|---|" + "--:|" * (len(sizes) + 1)
    return f"| {title} | {' | '.join(f'{size:,}' for size in sizes)} | exponent |\n{rule}"


def _rows(
    table: Table, keys: Mapping[str, str], results: Results, before: Results, budget_seconds: float
) -> list[str]:
    lines = []
    for title, key in keys.items():
        all_figures = [figures[key] for figures in (*results.values(), *before.values()) if key in figures]
        if all(figure is not None and figure < table.least for figure in all_figures):
            continue
        cells = [_cell(table, key, results[s], before.get(s, {}), budget_seconds) for s in sorted(results)]
        known = {size: figure for size in results if (figure := results[size].get(key)) is not None}
        found = exponent(known)
        lines.append(f"| {title} | {' | '.join(cells)} | {'' if found is None else f'{found:.2f}'} |")
    return lines


def _cell(table: Table, key: str, figures: Figures, before: Figures, budget_seconds: float) -> str:
    now, then = (_figure(table, key, each, budget_seconds) for each in (figures, before))
    return f"{now} ({then})" if then else now


def _figure(table: Table, key: str, figures: Figures, budget_seconds: float) -> str:
    if key not in figures:
        return ""
    figure = figures[key]
    if figure is None:
        return f"> {budget_seconds:g}"
    return f"{figure / table.unit:,.{table.digits}f}"


def conditions(jobs: int) -> str:
    """When and where it was measured, with so many cells at a time."""
    versions = ", ".join(f"{name} {importlib.metadata.version(name)}" for name in ("pydantic", "orjson"))
    return (
        f"Measured on {date.today()} with {os.cpu_count()} CPU cores ({jobs} cells at a time, "
        f"load average {os.getloadavg()[2]:.1f}),\n"
        f"{platform.system()}, Python {platform.python_version()}, {versions}."
    )
