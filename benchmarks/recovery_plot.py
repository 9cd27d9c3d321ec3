"""The picture in docs/recovery.md: every recovery as a dot, and where dlr's time goes."""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence
from pathlib import Path

import matplotlib
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import FuncFormatter, NullFormatter, PercentFormatter

from benchmarks.recovery_contender import Failure, Stage, Trial
from benchmarks.recovery_report import PEERS, Results, seconds

OURS, THEIRS, HUNG = "#0b62a4", "#8a8f98", "#c0392b"
STAGE_COLOURS = (
    *("#08306b", "#2171b5", "#6baed6", "#c6dbef"),
    *("#fdd0a2", "#fdae6b", "#e6550d", "#a63603"),
)
ROW_INCHES = 0.34


def plot(results: Results, path: Path) -> None:
    """An SVG, with the same bytes for the same results."""
    rows = [len(by_name) for by_name in results.values()]
    told = _told(results.get(Failure.PROCESS, {}))
    heights = [row + 1.0 for row in rows] + ([1.5 * len(told) + 2.0] if told else [])
    with matplotlib.rc_context({"svg.hashsalt": "recovery", "svg.fonttype": "path", "font.size": 9}):
        figure = Figure(figsize=(8.4, ROW_INCHES * sum(heights) + 1.0), layout="constrained")
        axes = figure.subplots(len(heights), 1, squeeze=False, gridspec_kw={"height_ratios": heights})[:, 0]
        limits = _limits(results)
        for axis, (failure, by_name) in zip(axes, results.items(), strict=False):
            _draw_trials(axis, failure, by_name, limits)
        axes[len(rows) - 1].set_xlabel("seconds from the failure to the next step of all (logarithmic)")
        if told:
            _draw_stages(axes[-1], told)
        figure.savefig(path, metadata={"Date": None})


def _limits(results: Results) -> tuple[float, float]:
    found = [
        value for by_name in results.values() for trials in by_name.values() for value in seconds(trials)
    ]
    return min(found, default=0.1) / 1.5, max(found, default=10.0) * 2.5


def _draw_trials(
    axis: Axes, failure: Failure, by_name: Mapping[str, Sequence[Trial]], limits: tuple[float, float]
) -> None:
    for row, (name, trials) in enumerate(by_name.items()):
        found, colour = seconds(trials), THEIRS if name in PEERS else OURS
        axis.scatter(found, [row] * len(found), s=22, color=colour, alpha=0.45, linewidths=0)
        if found:
            median = statistics.median(found)
            axis.plot([median, median], [row - 0.32, row + 0.32], color=colour, linewidth=2)
            axis.annotate(
                f"{median:.2f} s", (max(found), row), (7, 0), textcoords="offset points", va="center"
            )
        if hung := len(trials) - len(found):
            axis.annotate(
                f"{hung} hung", (1, row), (-4, 0), xycoords=("axes fraction", "data"),
                textcoords="offset points", ha="right", va="center", color=HUNG,
            )  # fmt: skip
    axis.set_title(f"{failure.value}: every recovery, with the median", loc="left", fontsize=10)
    axis.set_yticks(range(len(by_name)), list(by_name))
    axis.set_ylim(len(by_name) - 0.5, -0.5)
    axis.set_xscale("log")
    axis.set_xlim(*limits)
    axis.xaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}"))
    axis.xaxis.set_minor_formatter(NullFormatter())
    axis.grid(axis="x", which="both", alpha=0.25)
    _frame(axis)


def _draw_stages(axis: Axes, told: Mapping[str, Mapping[Stage, float]]) -> None:
    totals = {name: sum(parts.values()) for name, parts in told.items()}
    for row, (name, parts) in enumerate(told.items()):
        left = 0.0
        for stage, colour in zip(Stage, STAGE_COLOURS, strict=True):
            label = stage.value if row == 0 else None
            share = parts[stage] / totals[name]
            axis.barh(row, share, left=left, color=colour, height=0.6, label=label)
            left += share
    axis.set_title("process kill: the parts of dlr's time", loc="left", fontsize=10)
    axis.set_yticks(range(len(told)), [f"{name}\n{total:.2f} s" for name, total in totals.items()])
    axis.set_ylim(len(told) - 0.4, -0.6)
    axis.set_xlim(0, 1)
    axis.xaxis.set_major_formatter(PercentFormatter(1))
    axis.legend(ncols=len(Stage), loc="upper center", bbox_to_anchor=(0.42, -0.2), frameon=False, fontsize=8,
                columnspacing=1.0, handlelength=1.0)  # fmt: skip
    _frame(axis)


def _told(by_name: Mapping[str, Sequence[Trial]]) -> dict[str, dict[Stage, float]]:
    """The median of each part, by contender that could tell them."""
    known = {name: [t.stages for t in trials if t.stages] for name, trials in by_name.items()}
    return {
        name: {stage: statistics.median(part[stage] for part in parts) for stage in Stage}
        for name, parts in known.items()
        if parts
    }


def _frame(axis: Axes) -> None:
    axis.spines[["top", "right"]].set_visible(False)
