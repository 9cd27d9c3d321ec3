"""Output of `dlr simulate`: the uses of time, and the most effective changes."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from functools import partial

from simulator.account import GOOGLES, STATES, RunOutcome
from simulator.runs import FaultEffect, Mean, RunResult
from simulator.times import Times

_COUNTS = (
    ("failures of nodes in use", "faults"),
    ("interruptions", "interruptions"),
    ("rounds", "rounds"),
    ("cordons", "cordons"),
    ("cordons held back by the limit", "cordons_held"),
    ("repairs", "repairs"),
)


def percent(mean: Mean) -> str:
    width = f" ± {mean.half_width * 100:.2f}" if mean.half_width else ""
    return f"{mean.value * 100:.2f}{width} %"


def table(rows: Sequence[Sequence[str]], right: Sequence[int] = ()) -> list[str]:
    """Return rows as lines of aligned columns, those in `right` to the right."""
    widths = [max(len(row[column]) for row in rows) for column in range(len(rows[0]))]
    return [
        "  ".join(
            cell.rjust(width) if column in right else cell.ljust(width)
            for column, (cell, width) in enumerate(zip(row, widths, strict=True))
        ).rstrip()
        for row in rows
    ]


def summary(result: RunResult) -> list[str]:
    """Return the summary of one fleet, in lines."""
    fleet, seeds = result.fleet, len(result.outcomes)
    runs = f"{seeds} run{'s' if seeds > 1 else ''}"
    lines = [
        f"{fleet.name}: {fleet.nodes} nodes and {fleet.spares} spares, {result.days:g} days, {runs}",
        "",
        f"goodput     {percent(result.goodput)}   (steps kept × seconds a step ÷ time; docs/metrics.md)",
        f"full speed  {percent(result.full_speed)}   (of as many nodes that never fail, save or wait)",
        "",
    ]
    rows = [("where time goes", "share", "state of dlr", "Google's badput")]
    for part, mean in sorted(result.shares.items(), key=lambda item: -abs(item[1].value)):
        if abs(mean.value) >= 5e-6:
            google = GOOGLES.get(part, "PRODUCTIVE_TRAINING")
            rows.append((part.value, percent(mean), STATES[part], google))
    lines += [*table(rows, right=(1,)), ""]
    counts = [("in a run", "mean")]
    for name, field in _COUNTS:
        figure = result.mean(partial(_count, field))
        counts.append((name, f"{figure.value:,.1f}"))
    lines += table(counts, right=(1,))
    lines += [f"the job failed {why}" for why in result.ended[:3]]
    if len(result.ended) > 3:
        lines.append(f"and in {len(result.ended) - 3} runs more")
    return lines


def _count(field: str, outcome: RunOutcome) -> float:
    value = getattr(outcome, field)
    return float(value.total() if isinstance(value, Counter) else value)


def effect_lines(found: Sequence[FaultEffect]) -> list[str]:
    rows = [("what would help most, alone", "full speed, points")]
    for effect in found:
        width = f" ± {effect.gain.half_width * 100:.2f}" if effect.gain.half_width else ""
        rows.append((effect.change, f"{effect.gain.value * 100:+.2f}{width}"))
    return table(rows, right=(1,))


def time_lines(times: Times) -> list[str]:
    """Return the table of times, with the user's replacements."""
    rows = [("time", "value", "from")]
    for name, field in Times.model_fields.items():
        value = getattr(times, name)
        if value is not None:
            source = "fleet.yaml" if value != field.default else field.description or ""
            rows.append((name, f"{value:g}", source))
    return table(rows, right=(1,))
