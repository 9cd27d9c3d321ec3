"""A life drawn with matplotlib, as SVG with tooltips or as PNG.

Names and texts come from the cluster: they are drawn as they are, never as formulas.
"""

from __future__ import annotations

import io
import math
import textwrap
import warnings
from collections.abc import Iterable
from dataclasses import dataclass, field
from xml.etree import ElementTree

import matplotlib
from matplotlib.artist import Artist
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.patches import Patch, Rectangle
from matplotlib.ticker import FixedLocator, FuncFormatter, PercentFormatter

from crds.job_status import JobState
from dlr.commands.job.timeline.labels import Side, sides
from dlr.job.states import COLORS, color
from dlr.job.timeline.episodes import Span
from dlr.job.timeline.life import (
    Lane,
    Life,
    clock_of,
    title,
)
from dlr.job.timeline.verdict import verdict
from dlr.job.wording import duration, plain

SVG = "http://www.w3.org/2000/svg"
LANE_INCHES = 0.34
STRIP_INCHES = 0.42
SHARE_INCHES = 1.3
RIGHT_INCHES = 0.35
SCALE_INCHES = 0.42
"""For the two lines of the scale, below all."""
ROUNDS_INCHES = 0.28
LINE_INCHES = 0.19
"""Of the title, the verdict and the legend."""
TITLE_SHARE = 0.72
"""Of a line's characters: the title's are larger."""
POINTS_PER_INCH = 72
GAP_INCHES = 0.12
BAR_HEIGHT = 0.72
SHARE_LABEL = "time spent\ntraining, so far"
LABEL_SHARE = 0.044
"""Labels closer than this share of the width would lie on each other: the later ones are left out."""
MOST_LABEL = 24
LABEL_POINTS = 7.5
CHARACTER_POINTS = 4.6
"""How wide a character of a label is, about."""
CROSS_POINTS = 7.0
"""From the middle of a cross to where its label begins."""
SEEN_POINTS = 0.6
"""So wide is even what lasted seconds of a week; and it lies above the training around it."""
FAILURE_COLOR = "#a30000"
FOLLOWER_COLOR = "#555555"
STEPS_SECONDS = (1, 2, 5, 10, 15, 30, 60, 120, 300, 600, 900, 1_800, 3_600, 7_200, 10_800, 21_600, 43_200)
DAY_SECONDS = 86_400
MOST_TICKS = 12
STYLE = """
@media (prefers-color-scheme: dark) {
  svg text { fill: #e6e6e6 !important; }
  svg [style*="fill: #ffffff"] { fill: #16181b !important; }
  svg [style*="stroke: #000000"] { stroke: #e6e6e6 !important; }
  svg use[style*="stroke: #000000"] { fill: #e6e6e6; }
  svg [style*="fill: #444444"] { fill: #8c8c8c !important; stroke: #8c8c8c !important; }
}
"""
"""matplotlib writes colours into each element, so what is to be other in the dark is found by them."""


@dataclass(frozen=True)
class Sheet:
    """What a picture is made for."""

    width_inches: float
    left_inches: float
    """The width for the names of workers."""
    characters: int
    """Characters in a line of the title."""
    most_ticks: int
    legend_columns: int
    with_nodes: bool = True

    @property
    def bars_inches(self) -> float:
        return self.width_inches - self.left_inches - RIGHT_INCHES


DESK = Sheet(12.0, 1.95, characters=120, most_ticks=MOST_TICKS, legend_columns=8)
PHONE = Sheet(5.0, 0.95, characters=64, most_ticks=4, legend_columns=3, with_nodes=False)


@dataclass
class _Canvas:
    """The figure while it is drawn, and what each part of it says when it is pointed at."""

    figure: Figure
    tooltips: dict[str, str] = field(default_factory=dict)

    def says(self, artist: Artist, text: str) -> None:
        name = f"dlr-{len(self.tooltips)}"
        artist.set_gid(name)
        self.tooltips[name] = plain(text)


def draw_svg(life: Life, sheet: Sheet = DESK) -> str:
    canvas, data = _drawn(life, "svg", sheet)
    ElementTree.register_namespace("", SVG)
    ElementTree.register_namespace("xlink", "http://www.w3.org/1999/xlink")
    root = ElementTree.fromstring(data)
    for metadata in root.findall(f"{{{SVG}}}metadata"):
        root.remove(metadata)
    for group in root.iter(f"{{{SVG}}}g"):
        text = canvas.tooltips.get(group.get("id", ""))
        if text is not None:
            title = ElementTree.Element(f"{{{SVG}}}title")
            title.text = text
            group.insert(0, title)
    style = ElementTree.Element(f"{{{SVG}}}style")
    style.text = STYLE
    root.insert(0, style)
    return ElementTree.tostring(root, encoding="unicode")


def draw_png(life: Life) -> bytes:
    return _drawn(life, "png", DESK)[1]


def _drawn(life: Life, format_: str, sheet: Sheet) -> tuple[_Canvas, bytes]:
    style = matplotlib.rc_context(
        {
            "font.size": 9,
            "font.family": ["sans-serif"],
            "font.sans-serif": ["DejaVu Sans", "sans-serif"],
            "svg.fonttype": "none",
            "svg.hashsalt": f"dlr {sheet.width_inches}",  # two pictures of a page have ids of their own
            "text.parse_math": False,
            "axes.spines.top": False,
            "axes.spines.right": False,
        }
    )
    with style, warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="Glyph .* missing from")  # a box stands for it
        canvas = _draw(life, sheet)
        file = io.BytesIO()
        metadata = {"Date": None} if format_ == "svg" else None
        canvas.figure.savefig(file, format=format_, dpi=130, metadata=metadata)
    return canvas, file.getvalue()


def _draw(life: Life, sheet: Sheet) -> _Canvas:
    lanes = max(1, len(life.lanes))
    heading = textwrap.wrap(title(life), round(TITLE_SHARE * sheet.characters))
    said = textwrap.wrap(verdict(life), sheet.characters)
    handles = _legend(life)
    legend_rows = math.ceil(len(handles) / sheet.legend_columns)
    top = (len(heading) + len(said) + 0.5) * LINE_INCHES + ROUNDS_INCHES
    bottom = SCALE_INCHES + (legend_rows + 0.7) * LINE_INCHES
    height = top + STRIP_INCHES + lanes * LANE_INCHES + SHARE_INCHES + 2 * GAP_INCHES + bottom
    canvas = _Canvas(Figure(figsize=(sheet.width_inches, height)))

    def axes(bottom_inches: float, height_inches: float) -> Axes:
        left, width = sheet.left_inches / sheet.width_inches, sheet.bars_inches / sheet.width_inches
        made = canvas.figure.add_axes((left, bottom_inches / height, width, height_inches / height))
        made.set_xlim(life.known_since, life.seconds)
        return made

    share = axes(bottom, SHARE_INCHES)
    bottom += SHARE_INCHES + GAP_INCHES
    bars = axes(bottom, lanes * LANE_INCHES)
    bottom += lanes * LANE_INCHES + GAP_INCHES
    strip = axes(bottom, STRIP_INCHES)
    _draw_job(canvas, strip, life, sheet)
    _draw_lanes(canvas, bars, life, sheet)
    _draw_share(share, life, sheet)
    for number, line in enumerate([*heading, *said]):
        weight, size = ("bold", 11) if number < len(heading) else ("normal", 9)
        up = 1 - (number + 0.8) * LINE_INCHES / height
        canvas.figure.text(0.1 / sheet.width_inches, up, line, fontsize=size, fontweight=weight, va="center")
    canvas.figure.legend(
        handles=handles,
        loc="lower center",
        ncols=min(len(handles), sheet.legend_columns),
        frameon=False,
        handlelength=1.2,
        columnspacing=1.4,
        fontsize=8.5,
    )
    return canvas


def _draw_job(canvas: _Canvas, axes: Axes, life: Life, sheet: Sheet) -> None:
    """The states of the job as a whole, and where its rounds begin."""
    _bars(canvas, axes, 0, life.states)
    axes.set_ylim(-0.5, 0.5)
    axes.set_yticks([0], ["job"], fontweight="bold")
    _quiet(axes)
    axes.tick_params(labelbottom=False)
    width = life.seconds - life.known_since
    labelled = float("-inf")
    for each in life.rounds:
        if each.at - labelled < LABEL_SHARE * DESK.bars_inches / sheet.bars_inches * width:
            continue
        labelled = each.at
        text = axes.annotate(
            f"round {each.number}",
            (each.at, 0.5),
            xytext=(0, 3),
            textcoords="offset points",
            fontsize=LABEL_POINTS,
        )
        reason = f": {each.reason}" if each.reason else ""
        canvas.says(text, f"round {each.number}, workers {each.members}{reason}")


def _draw_lanes(canvas: _Canvas, axes: Axes, life: Life, sheet: Sheet) -> None:
    for each in life.rounds:
        axes.axvline(each.at, color="#999999", linewidth=0.6, linestyle=":", zorder=0)
    for row, lane in enumerate(life.lanes):
        _bars(canvas, axes, row, lane.spans)
        _draw_starts(canvas, axes, row, lane)
        _draw_failures(canvas, axes, row, lane, life, sheet)
    axes.set_ylim(max(1, len(life.lanes)) - 0.5, -0.5)
    axes.set_yticks(range(len(life.lanes)), [_lane_label(lane, sheet) for lane in life.lanes])
    _quiet(axes)
    axes.tick_params(labelbottom=False)


def _lane_label(lane: Lane, sheet: Sheet) -> str:
    """The worker without its job's name, and its node where there is room for it."""
    label = f"{lane.title} ({lane.node})" if lane.node and sheet.with_nodes else lane.title
    return plain(label if len(label) <= MOST_LABEL else f"{label[: MOST_LABEL - 1]}…")


def _bars(canvas: _Canvas, axes: Axes, row: int, spans: Iterable[Span]) -> None:
    for span in spans:
        bar = Rectangle(
            (span.begin, row - BAR_HEIGHT / 2),
            span.seconds,
            BAR_HEIGHT,
            facecolor=color(span.state),
            edgecolor=color(span.state),
            linewidth=SEEN_POINTS,
            zorder=1 if span.state == JobState.TRAINING else 2,
        )
        axes.add_patch(bar)
        stretch = f"{duration(span.begin)} to {duration(span.end)}"
        canvas.says(
            bar,
            f"{span.state} for {duration(span.seconds)}, {stretch}" + (f": {span.text}" if span.text else ""),
        )


def _draw_starts(canvas: _Canvas, axes: Axes, row: int, lane: Lane) -> None:
    for start in lane.starts:
        (mark,) = axes.plot(
            start.at,
            row + BAR_HEIGHT / 2,
            marker="^",
            markersize=5,
            color="black",
            linestyle="none",
            zorder=3,
        )
        canvas.says(mark, f"Pod {start.incarnation} of {lane.worker}, at {duration(start.at)}")


def _draw_failures(canvas: _Canvas, axes: Axes, row: int, lane: Lane, life: Life, sheet: Sheet) -> None:
    shown = [failure for failure in lane.failures if failure.at >= life.known_since]
    labels = ["" if failure.follows else plain(failure.what)[:MOST_LABEL] for failure in shown]
    second_points = sheet.bars_inches * POINTS_PER_INCH / (life.seconds - life.known_since)
    places = sides(
        [failure.at for failure in shown],
        [len(label) * CHARACTER_POINTS / second_points for label in labels],
        around=CROSS_POINTS / second_points,
        begin=life.known_since,
        end=life.seconds,
    )
    for failure, label, side in zip(shown, labels, places, strict=True):
        (mark,) = axes.plot(
            failure.at,
            row,
            marker="X",
            markersize=6 if failure.follows else 9,
            markerfacecolor=FOLLOWER_COLOR if failure.follows else FAILURE_COLOR,
            markeredgecolor="white",
            linestyle="none",
            zorder=4,
            clip_on=False,
        )
        said = f": {failure.text}" if failure.text else ""
        when = f"{duration(failure.at)} ({clock_of(life, failure.at)} UTC)"
        canvas.says(mark, f"{failure.what}, {lane.worker}, at {when}{said}")
        if side is not None:
            axes.annotate(
                label,
                (failure.at, row),
                xytext=(CROSS_POINTS if side is Side.RIGHT else -CROSS_POINTS, 0),
                textcoords="offset points",
                ha="left" if side is Side.RIGHT else "right",
                va="center",
                fontsize=LABEL_POINTS,
                color="black",
                zorder=3,
                bbox={"boxstyle": "round,pad=0.15", "facecolor": "white", "edgecolor": "none", "alpha": 0.75},
            )


def _draw_share(axes: Axes, life: Life, sheet: Sheet) -> None:
    times = [time for time, _ in life.training_share]
    shares = [share for _, share in life.training_share]
    training = color(JobState.TRAINING)
    axes.fill_between(times, shares, color=training, alpha=0.18, linewidth=0)
    axes.plot(times, shares, color=training, linewidth=1.6)
    if life.goodput is not None:
        axes.axhline(min(life.goodput, 1.05), color="black", linewidth=0.8, linestyle="--")
        axes.annotate(
            f"goodput {life.goodput:.1%}",
            (life.known_since, min(life.goodput, 1.05)),
            xytext=(4, -3),
            textcoords="offset points",
            va="top",
            fontsize=8,
        )
    axes.set_ylim(0, 1.08)
    axes.yaxis.set_major_locator(FixedLocator([0, 0.5, 1]))
    axes.yaxis.set_major_formatter(PercentFormatter(1.0))
    if sheet.with_nodes:
        axes.set_ylabel(SHARE_LABEL, rotation=0, ha="right", va="center", labelpad=8)
    else:  # there is no room beside it
        axes.annotate(
            SHARE_LABEL,
            (1, 0),
            xytext=(-4, 4),
            xycoords="axes fraction",
            textcoords="offset points",
            ha="right",
            fontsize=LABEL_POINTS,
        )
    axes.grid(axis="y", color="#e4e4e4", linewidth=0.6)
    axes.set_axisbelow(True)
    axes.xaxis.set_major_locator(FixedLocator(ticks(life.known_since, life.seconds, sheet.most_ticks)))
    axes.xaxis.set_major_formatter(
        FuncFormatter(lambda seconds, _: f"{duration(seconds)}\n{clock_of(life, seconds)}")
    )
    axes.annotate(
        "UTC",
        (0, 0),
        xytext=(-32, -3 - 2 * LABEL_POINTS * 1.2),
        xycoords="axes fraction",
        textcoords="offset points",
        ha="right",
        va="center",
        fontsize=LABEL_POINTS,
    )


def ticks(begin: float, end: float, most: int = MOST_TICKS) -> list[float]:
    """At round numbers of seconds, minutes, hours or days; about so many at most."""
    wanted = (end - begin) / most
    step = next((each for each in STEPS_SECONDS if each >= wanted), None)
    if step is None:
        step = DAY_SECONDS * math.ceil(wanted / DAY_SECONDS)
    first = math.ceil(begin / step) * step
    return [float(at) for at in range(first, int(end) + 1, step)]


def _quiet(axes: Axes) -> None:
    for spine in axes.spines.values():
        spine.set_visible(False)
    axes.tick_params(length=0)
    axes.xaxis.set_major_locator(FixedLocator([]))


def _legend(life: Life) -> list[Artist]:
    """Only what is there to be seen."""
    seen = {span.state for span in life.states} | {span.state for lane in life.lanes for span in lane.spans}
    handles: list[Artist] = [Patch(facecolor=COLORS[state], label=state) for state in COLORS if state in seen]
    failures = [failure for lane in life.lanes for failure in lane.failures]
    if not all(failure.follows for failure in failures):
        handles.append(_marker("X", FAILURE_COLOR, "failure"))
    if any(failure.follows for failure in failures):
        handles.append(_marker("X", FOLLOWER_COLOR, "died of a peer's failure, or waited"))
    if any(lane.starts for lane in life.lanes):
        handles.append(_marker("^", "black", "new Pod"))
    return handles


def _marker(shape: str, fill: str, label: str) -> Line2D:
    return Line2D(
        [], [], marker=shape, color=fill, markeredgecolor="white", markersize=8, linestyle="none", label=label
    )
