"""A life drawn with matplotlib, as SVG with tooltips or as PNG.

Names and texts come from the cluster: they are drawn as they are, never as formulas.
"""

from __future__ import annotations

import io
import math
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

from crds.elasticjob import JobState
from dlr.commands.job.states import COLORS, color
from dlr.commands.job.timeline.episodes import Span
from dlr.commands.job.timeline.life import Lane, Life
from dlr.commands.output import duration, plain

SVG = "http://www.w3.org/2000/svg"
WIDTH_INCHES = 12.0
LANE_INCHES = 0.34
STRIP_INCHES = 0.42
SHARE_INCHES = 1.3
MARGIN_INCHES = {"top": 0.75, "bottom": 0.72, "left": 1.95, "right": 0.35}
GAP_INCHES = 0.12
BAR_HEIGHT = 0.72
LABEL_SHARE = 0.044
"""Labels closer than this share of the width would lie on each other: the later ones are left out."""
MOST_LABEL = 24
SEEN_POINTS = 0.6
"""So wide is even what lasted seconds of a week; and it lies above the training around it."""
FAILURE_COLOR = "#a30000"
FOLLOWER_COLOR = "#555555"
STEPS_SECONDS = (1, 2, 5, 10, 15, 30, 60, 120, 300, 600, 900, 1_800, 3_600, 7_200, 10_800, 21_600, 43_200)
DAY_SECONDS = 86_400
MOST_TICKS = 12


@dataclass
class _Canvas:
    """The figure while it is drawn, and what each part of it says when it is pointed at."""

    figure: Figure
    tooltips: dict[str, str] = field(default_factory=dict)

    def says(self, artist: Artist, text: str) -> None:
        name = f"dlr-{len(self.tooltips)}"
        artist.set_gid(name)
        self.tooltips[name] = plain(text)


def draw_svg(life: Life) -> str:
    canvas, data = _drawn(life, "svg")
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
    return ElementTree.tostring(root, encoding="unicode")


def draw_png(life: Life) -> bytes:
    return _drawn(life, "png")[1]


def _drawn(life: Life, format_: str) -> tuple[_Canvas, bytes]:
    style = matplotlib.rc_context(
        {
            "font.size": 9,
            "font.family": ["sans-serif"],
            "font.sans-serif": ["DejaVu Sans", "sans-serif"],
            "svg.fonttype": "none",
            "svg.hashsalt": "dlr",
            "text.parse_math": False,
            "axes.spines.top": False,
            "axes.spines.right": False,
        }
    )
    with style, warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="Glyph .* missing from")  # a box stands for it
        canvas = _draw(life)
        file = io.BytesIO()
        metadata = {"Date": None} if format_ == "svg" else None
        canvas.figure.savefig(file, format=format_, dpi=130, metadata=metadata)
    return canvas, file.getvalue()


def _draw(life: Life) -> _Canvas:
    lanes = max(1, len(life.lanes))
    inner = STRIP_INCHES + lanes * LANE_INCHES + SHARE_INCHES + 2 * GAP_INCHES
    height = inner + MARGIN_INCHES["top"] + MARGIN_INCHES["bottom"]
    canvas = _Canvas(Figure(figsize=(WIDTH_INCHES, height)))
    left = MARGIN_INCHES["left"] / WIDTH_INCHES
    width = 1 - left - MARGIN_INCHES["right"] / WIDTH_INCHES

    def axes(bottom_inches: float, height_inches: float) -> Axes:
        box = (left, bottom_inches / height, width, height_inches / height)
        made = canvas.figure.add_axes(box)
        made.set_xlim(life.known_since, life.seconds)
        return made

    bottom = MARGIN_INCHES["bottom"]
    share = axes(bottom, SHARE_INCHES)
    bottom += SHARE_INCHES + GAP_INCHES
    bars = axes(bottom, lanes * LANE_INCHES)
    bottom += lanes * LANE_INCHES + GAP_INCHES
    strip = axes(bottom, STRIP_INCHES)
    _draw_job(canvas, strip, life)
    _draw_lanes(canvas, bars, life)
    _draw_share(share, life)
    canvas.figure.text(0.01, 1 - 0.24 / height, title(life), fontsize=12, fontweight="bold", va="center")
    handles = _legend(life)
    canvas.figure.legend(
        handles=handles,
        loc="lower center",
        ncols=len(handles),
        frameon=False,
        handlelength=1.2,
        columnspacing=1.4,
    )
    return canvas


def title(life: Life) -> str:
    parts = [
        life.name,
        life.phase,
        f"{duration(life.seconds)} since {life.submitted:%Y-%m-%d %H:%M:%S} UTC",
    ]
    if life.goodput is not None:
        parts.append(f"goodput {life.goodput:.1%}")
    if life.lanes_left_out:
        parts.append(f"{life.lanes_left_out} more workers")
    if life.known_since > 0:
        parts.append(f"the first {duration(life.known_since)} are forgotten")
    return plain(" · ".join(parts))


def _draw_job(canvas: _Canvas, axes: Axes, life: Life) -> None:
    """The states of the job as a whole, and where its rounds begin."""
    _bars(canvas, axes, 0, life.states)
    axes.set_ylim(-0.5, 0.5)
    axes.set_yticks([0], ["job"], fontweight="bold")
    _quiet(axes)
    axes.tick_params(labelbottom=False)
    width = life.seconds - life.known_since
    labelled = float("-inf")
    for each in life.rounds:
        if each.at - labelled < LABEL_SHARE * width:
            continue
        labelled = each.at
        text = axes.annotate(
            f"round {each.number}", (each.at, 0.5), xytext=(0, 3), textcoords="offset points", fontsize=7.5
        )
        reason = f": {each.reason}" if each.reason else ""
        canvas.says(text, f"round {each.number}, workers {each.members}{reason}")


def _draw_lanes(canvas: _Canvas, axes: Axes, life: Life) -> None:
    for each in life.rounds:
        axes.axvline(each.at, color="#999999", linewidth=0.6, linestyle=":", zorder=0)
    for row, lane in enumerate(life.lanes):
        _bars(canvas, axes, row, lane.spans)
        _draw_starts(canvas, axes, row, lane)
        _draw_failures(canvas, axes, row, lane, life)
    axes.set_ylim(max(1, len(life.lanes)) - 0.5, -0.5)
    axes.set_yticks(range(len(life.lanes)), [_lane_label(lane) for lane in life.lanes])
    _quiet(axes)
    axes.tick_params(labelbottom=False)


def _lane_label(lane: Lane) -> str:
    """The worker without its job's name, and its node."""
    label = f"{lane.title} ({lane.node})" if lane.node else lane.title
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


def _draw_failures(canvas: _Canvas, axes: Axes, row: int, lane: Lane, life: Life) -> None:
    width = life.seconds - life.known_since
    labelled = float("-inf")
    for failure in lane.failures:
        if failure.at < life.known_since:
            continue
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
        canvas.says(mark, f"{failure.what}, {lane.worker}, at {duration(failure.at)}{said}")
        if not failure.follows and failure.at - labelled >= 2 * LABEL_SHARE * width:
            labelled = failure.at
            at_the_edge = life.seconds - failure.at < 2 * LABEL_SHARE * width
            axes.annotate(
                plain(failure.what)[:MOST_LABEL],
                (failure.at, row),
                xytext=(-7 if at_the_edge else 7, 0),
                textcoords="offset points",
                ha="right" if at_the_edge else "left",
                va="center",
                fontsize=7.5,
                color="black",
                zorder=3,
                bbox={"boxstyle": "round,pad=0.15", "facecolor": "white", "edgecolor": "none", "alpha": 0.75},
            )


def _draw_share(axes: Axes, life: Life) -> None:
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
    axes.set_ylabel("time spent\ntraining, so far", rotation=0, ha="right", va="center", labelpad=8)
    axes.grid(axis="y", color="#e4e4e4", linewidth=0.6)
    axes.set_axisbelow(True)
    axes.xaxis.set_major_locator(FixedLocator(ticks(life.known_since, life.seconds)))
    axes.xaxis.set_major_formatter(FuncFormatter(lambda seconds, _: duration(seconds)))


def ticks(begin: float, end: float) -> list[float]:
    """At round numbers of seconds, minutes, hours or days; a dozen at most."""
    wanted = (end - begin) / MOST_TICKS
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
        handles.append(_marker("X", FOLLOWER_COLOR, "died of another's failure"))
    if any(lane.starts for lane in life.lanes):
        handles.append(_marker("^", "black", "new Pod"))
    return handles


def _marker(shape: str, fill: str, label: str) -> Line2D:
    return Line2D(
        [], [], marker=shape, color=fill, markeredgecolor="white", markersize=8, linestyle="none", label=label
    )
