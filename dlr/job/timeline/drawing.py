"""Drawing of a timeline as SVG with tooltips, for any width. Pure.

`dlr job timeline` writes it, and the dashboard shows it. Positions in time are percentages, so a browser fits
the bars to its window without scaling texts.
"""

from __future__ import annotations

import math
import textwrap
from collections.abc import Iterable, Sequence
from html import escape
from itertools import pairwise

from controller.wording import shortened
from dlr.job.timeline.episodes import SHORTEST_LIFE_SECONDS, PastFailure, Span
from dlr.job.timeline.life import JobTimeline, Lane, clock_of, title
from dlr.job.tones import DARK, LIGHT, TONES, tone_of
from dlr.job.wording import duration, plain

FILE_WIDTH, VERDICT_CHARACTERS = 1200, 125
LABELS_PERCENT, BARS_PERCENT = 16, 82.5
LINE, HEAD, LANE, GAP, SHARE, SCALE = 16, 22, 18, 6, 60, 32
"""Heights in pixels of a line of text, a line of the verdict, a bar, a gap, the curve, and the scale."""
CURVE = FILE_WIDTH * BARS_PERCENT / 100
"""Width of the curve's own coordinates, equal to a file's pixels."""
EDGE_PERCENT = 4.0
"""Distance from an end of the scale within which a label is aligned with the end."""
LEAST_PERCENT = 0.1
"""Smallest width of a stretch."""
LABEL_PERCENT = 8.0
"""Width of a label; without so much space it is left out."""
MOST_LABEL = 24
MOST_TEXT = 300
LEGEND_CHARACTERS = 44
"""Longest line of the legend, which fits a phone."""
SIGN_CHARACTERS = 3
"""Width of a sign and its gap in the legend."""
STEPS_SECONDS = (1, 2, 5, 10, 15, 30, 60, 120, 300, 600, 900, 1_800, 3_600, 7_200, 10_800, 21_600, 43_200)
DAY_SECONDS = 86_400
MOST_TICKS = 9
NARROW_TICKS = 3
"""A narrow window shows every third tick."""
CROSS = "M-1-.4-.4-1 0-.6 .4-1 1-.4 .6 0 1 .4 .4 1 0 .6-.4 1-1 .4-.6 0Z"


def _colors(ground: dict[str, str], shade: int) -> str:
    inks = {tone.name: tone.ink[shade] for tone in TONES}
    return f"""
.timeline {{ background: {ground["ground"]}; }}
.timeline text, .timeline .start {{ fill: {ground["text"]}; }}
.timeline .tick {{ fill: {ground["quiet"]}; }}
.timeline .grid {{ stroke: {ground["line"]}; }}
.timeline .round {{ stroke: {ground["quiet"]}; }}
.timeline .share {{ stroke: {inks["good"]}; }}
.timeline .goodput {{ stroke: {ground["text"]}; }}
.timeline .cross, .timeline .what {{ stroke: {ground["ground"]}; }}
.timeline .own {{ fill: {inks["bad"]}; }}
.timeline .planned {{ fill: {inks["busy"]}; stroke: {ground["ground"]}; }}"""


STYLE = f"""
.timeline {{ display: block; width: 100%; overflow: visible; }}
.timeline text {{ font: 12px system-ui, sans-serif; }}
.timeline .head {{ font-size: 15px; font-weight: 600; }}
.timeline .round {{ stroke-dasharray: 1 3; }}
.timeline .share {{ fill: none; stroke-width: 1.5; vector-effect: non-scaling-stroke; }}
.timeline .goodput {{ stroke-dasharray: 4 3; }}
.timeline .cross {{ stroke-width: .2; }}
.timeline .what {{ stroke-width: 3px; paint-order: stroke; }}
{_colors(LIGHT, 0)}
@media (prefers-color-scheme: dark) {{ {_colors(DARK, 1)} }}
@media (max-width: 700px) {{ .timeline .extra {{ display: none; }} }}
"""
"""Style of the drawing. Colours are literal, since some viewers of SVG files lack custom properties."""


def draw(life: JobTimeline, *, verdict: str = "", most_spans: int | None = None) -> str:
    """Return an SVG element; its classes need `STYLE`.

    Args:
        verdict: text above the drawing, with the title.
        most_spans: number of newest stretches to draw for each worker; default: all.
    """
    heading = textwrap.wrap(verdict, VERDICT_CHARACTERS)
    first = HEAD * len(heading) + (LINE + GAP) * bool(verdict)
    lanes = first + LINE + LANE + GAP
    bottom = lanes + LANE * len(life.lanes) + GAP + SHARE
    rows = [first + LINE, *range(lanes, bottom - SHARE - GAP, LANE)]
    bars = [*_rounds(life, first, bottom), *_bars(life, life.states, rows[0])]
    bars += _changes(life, rows[0])
    for lane, top in zip(life.lanes, rows[1:], strict=True):
        bars += _bars(life, lane.spans[-most_spans:] if most_spans else lane.spans, top)
        bars += _marks(life, lane, top)
    bars += _share(life, bottom)
    legend = _legend(life)
    parts = [_text(line, 0, (number + 0.8) * HEAD, "head") for number, line in enumerate(heading)]
    if verdict:
        parts.append(_text(title(life), 0, HEAD * len(heading) + LINE * 0.8, "tick"))
    for label, top in zip(
        [("job", ""), *((each.title, each.node) for each in life.lanes)], rows, strict=True
    ):
        parts.append(_label(*label, top))
    parts.append(_text("time in Training", 0, bottom - SHARE / 2 + 4, "tick extra"))
    parts += [_text(name, 0, bottom + down, "tick") for name, down in (("elapsed", 14), ("UTC", 28))]
    for share in (0, 50, 100):
        y = bottom - SHARE * share / 100 + 4
        parts.append(_text(f"{share} %", LABELS_PERCENT - 0.5, y, "tick", ' text-anchor="end"'))
    parts.append(
        f'<svg x="{LABELS_PERCENT}%" width="{BARS_PERCENT}%" overflow="visible">{"".join(bars)}</svg>'
    )
    parts += [_legend_line(line, bottom + SCALE + (number + 1) * HEAD) for number, line in enumerate(legend)]
    height = bottom + SCALE + HEAD * len(legend) + GAP
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" class="timeline" width="{FILE_WIDTH}" height="{height}" '
        f'role="img" aria-label="What the job and its workers did when">{"".join(parts)}</svg>'
    )


def svg_file(life: JobTimeline, verdict: str) -> str:
    """Return the drawing with its style, and title and verdict above it."""
    head, rest = draw(life, verdict=verdict).split(">", 1)
    return f"{head}><style>{STYLE}</style>{rest}\n"


def ticks(begin: float, end: float) -> list[float]:
    """Return at most MOST_TICKS + 1 round numbers of seconds, minutes, hours or days."""
    wanted = (end - begin) / MOST_TICKS
    step = next((each for each in STEPS_SECONDS if each >= wanted), None)
    if step is None:
        step = DAY_SECONDS * math.ceil(wanted / DAY_SECONDS)
    first = math.ceil(begin / step) * step
    return [float(at) for at in range(first, int(end) + 1, step)]


def _percent(life: JobTimeline, at: float) -> float:
    seconds = max(life.seconds - life.known_since, SHORTEST_LIFE_SECONDS)
    return 100 * (min(max(at, life.known_since), life.seconds) - life.known_since) / seconds


def _element(tag: str, attributes: str, tooltip: str) -> str:
    return f"<{tag} {attributes}><title>{escape(plain(tooltip)[:MOST_TEXT])}</title></{tag}>"


def _text(text: str, x: float, y: float, class_: str, more: str = "", tooltip: str = "") -> str:
    tip = f"<title>{escape(plain(tooltip)[:MOST_TEXT])}</title>" if tooltip else ""
    return f'<text x="{x:.2f}%" y="{y:g}" class="{class_}"{more}>{tip}{escape(plain(text))}</text>'


def _label(name: str, node: str, top: int) -> str:
    """Return the label of a lane: its name, and in a wide window its node."""
    short = shortened(name, MOST_LABEL)
    where = shortened(f"({node})", max(1, MOST_LABEL - len(short))) if node else ""
    shown = f'{escape(plain(short))} <tspan class="extra">{escape(plain(where))}</tspan>'
    return (
        f'<text x="2" y="{top + 13}"><title>{escape(plain(f"{name} {node}".strip()))}</title>{shown}</text>'
    )


def _bars(life: JobTimeline, spans: Iterable[Span], top: int) -> Iterable[str]:
    for span in spans:
        begin, end = _percent(life, span.begin), _percent(life, span.end)
        if span.end < life.known_since:
            continue
        text = f": {span.text}" if span.text else ""
        tooltip = (
            f"{span.state} for {duration(span.seconds)}, {duration(span.begin)} to {duration(span.end)}{text}"
        )
        place = f'x="{begin:.2f}%" y="{top + 2}" width="{max(end - begin, LEAST_PERCENT):.2f}%"'
        yield _element("rect", f'{place} height="{LANE - 4}" fill="{tone_of(span.state).fill}"', tooltip)


def _rounds(life: JobTimeline, top: int, bottom: int) -> Iterable[str]:
    labelled = -LABEL_PERCENT
    for each in life.rounds:
        x = _percent(life, each.at)
        yield f'<line class="round" x1="{x:.2f}%" x2="{x:.2f}%" y1="{top + LINE}" y2="{bottom}"/>'
        if labelled + LABEL_PERCENT <= x <= 100 - LABEL_PERCENT:
            labelled = x
            reason = f": {each.reason}" if each.reason else ""
            name = f"{life.round_word} {each.number}"
            tooltip = f"{name}, {life.member_word}s {each.members}{reason}"
            yield _text(name, x, top + 12, "tick", tooltip=tooltip)


def _marks(life: JobTimeline, lane: Lane, top: int) -> Iterable[str]:
    """Draw new Pods, and failures with their class if there is space for it."""
    for start in lane.starts:
        mark = _element("path", 'class="start" d="M-4 0h8l-4-6z"', f"{start.pod}, at {duration(start.at)}")
        yield _at(life, start.at, top + LANE, mark)
    shown = [each for each in lane.failures if each.at >= life.known_since]
    places = [*(_percent(life, each.at) for each in shown), 100.0]
    for failure, (x, following) in zip(shown, pairwise(places), strict=True):
        cross = _element("path", f'class="cross own" transform="scale(5)" d="{CROSS}"', _words(life, failure))
        yield _at(life, failure.at, top + LANE // 2, cross)
        if following - x > LABEL_PERCENT:
            yield _text(failure.what[:MOST_LABEL], x, top + 13, "what extra", ' dx="8"')


def _changes(life: JobTimeline, top: int) -> Iterable[str]:
    """Draw planned changes, in the job's own bar."""
    for each in life.changes:
        tooltip = f"planned change at {duration(each.at)}: {each.text or each.state}"
        mark = _element("path", 'class="planned" d="M-6 0l6-6 6 6-6 6z"', tooltip)
        yield _at(life, each.at, top + LANE // 2, mark)


def _words(life: JobTimeline, failure: PastFailure) -> str:
    text = f": {failure.text}" if failure.text else ""
    text += f"; {failure.survivors}" if failure.survivors else ""
    at = f"{duration(failure.at)} ({clock_of(life, failure.at)} UTC)"
    return f"{failure.what}, {failure.worker}, at {at}{text}"


def _at(life: JobTimeline, at: float, y: float, mark: str) -> str:
    """Return a mark at a place; only a nested `svg` element can have a percentage as its position."""
    if at < life.known_since:
        return ""
    return f'<svg x="{_percent(life, at):.2f}%" y="{y:g}" overflow="visible">{mark}</svg>'


def _share(life: JobTimeline, bottom: int) -> Iterable[str]:
    """Draw the curve of the time spent training, the goodput, and the scale below them."""
    for share in (0, 0.5, 1):
        y = bottom - SHARE * share
        yield f'<line class="grid" x1="0" x2="100%" y1="{y:g}" y2="{y:g}"/>'
    points = " ".join(
        f"{_percent(life, at) * CURVE / 100:.1f},{SHARE * (1 - share):.1f}"
        for at, share in life.training_share
    )
    curve = _element(
        "polyline",
        f'class="share" points="{points}"',
        "the share of the time so far in which the job trained",
    )
    yield (
        f'<svg y="{bottom - SHARE}" height="{SHARE}" viewBox="0 0 {CURVE:g} {SHARE}" '
        f'preserveAspectRatio="none" overflow="visible">{curve}</svg>'
    )
    if life.goodput is not None:
        y = bottom - SHARE * min(life.goodput, 1.0)
        text = f"goodput {life.goodput:.1%}"
        yield _element("line", f'class="goodput" x1="0" x2="100%" y1="{y:.1f}" y2="{y:.1f}"', text)
        yield _text(text, 0, y + 12, "what", ' dx="4"')
    for number, at in enumerate(ticks(life.known_since, life.seconds)):
        class_, x = "tick extra" if number % NARROW_TICKS else "tick", _percent(life, at)
        anchor = "start" if x < EDGE_PERCENT else "end" if x > 100 - EDGE_PERCENT else "middle"
        for down, text in ((14, duration(at)), (28, clock_of(life, at))):
            yield _text(text, x, bottom + down, class_, f' text-anchor="{anchor}"')


def _legend(life: JobTimeline) -> list[list[tuple[str, str, str]]]:
    """Return the lines of the legend: sign, colour or class, and name of each item."""
    seen = {span.state for span in life.states} | {span.state for lane in life.lanes for span in lane.spans}
    shown = [(tone.fill, [word for word in tone.words if word in seen]) for tone in TONES]
    items = [("■", f'fill="{fill}"', ", ".join(words)) for fill, words in shown if words]
    if any(lane.failures for lane in life.lanes):
        items.append(("✕", 'class="own"', "failure"))
    if life.changes:
        items.append(("◆", 'class="planned"', "planned change"))
    if any(lane.starts for lane in life.lanes):
        items.append(("▲", 'class="start"', "new Pod"))
    lines: list[list[tuple[str, str, str]]] = []
    room = 0
    for item in items:
        taken = SIGN_CHARACTERS + len(item[2])
        if taken > room:
            lines.append([])
            room = LEGEND_CHARACTERS
        lines[-1].append(item)
        room -= taken
    return lines


def _legend_line(items: Sequence[tuple[str, str, str]], y: float) -> str:
    shown = "".join(
        f'<tspan dx="{12 if number else 0}" {how}>{sign}</tspan><tspan dx="4">{escape(name)}</tspan>'
        for number, (sign, how, name) in enumerate(items)
    )
    return f'<text y="{y:g}">{shown}</text>'
