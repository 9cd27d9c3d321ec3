"""Bars of where the time went, as an SVG with the same bytes for the same figures."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from html import escape

from simulator.account import Part

COLOURS: dict[Part, str] = {
    Part.USEFUL: "#2a7f62",
    Part.SAVING: "#a3c9a8",
    Part.SLOWED: "#d9d78a",
    Part.MISSING: "#e6c35c",
    Part.REDONE: "#e08e45",
    Part.NOTICING: "#c8553d",
    Part.WAITING: "#a63d40",
    Part.STARTING: "#6d2e46",
    Part.STALLED: "#8d6a9f",
    Part.DOWN: "#3d405b",
    Part.CHECKING: "#7aa5d2",
    Part.FORMING: "#b8c4d6",
    Part.PENDING: "#d5d9e0",
    Part.ENDED: "#222222",
}
WIDTH, LABEL, ROW, BAR, TOP = 900, 330, 26, 18, 44
FONT = "font-family='Helvetica, Arial, sans-serif'"


def bars(title: str, rows: Sequence[tuple[str, Mapping[Part, float]]], note: str = "") -> str:
    """The picture.

    Args:
        rows: a label, and shares of the time that sum up to 1. A row without shares is a heading.
    """
    room = WIDTH - LABEL - 80
    shown = [part for part in COLOURS if any(shares.get(part, 0.0) >= 5e-4 for _, shares in rows)]
    legend_top = TOP + ROW * len(rows) + 14
    height = legend_top + 20 * -(-len(shown) // 3) + (24 if note else 6)
    lines = [
        f"<svg xmlns='http://www.w3.org/2000/svg' viewBox='0 0 {WIDTH} {height}' width='{WIDTH}' "
        f"height='{height}' {FONT} font-size='12'>",
        f"<rect width='{WIDTH}' height='{height}' fill='#ffffff'/>",
        f"<text x='12' y='24' font-size='15' font-weight='bold'>{escape(title)}</text>",
    ]
    for number, (label, shares) in enumerate(rows):
        lines += _row(label, shares, TOP + ROW * number, room)
    for number, part in enumerate(shown):
        x, y = 12 + number % 3 * 290, legend_top + number // 3 * 20
        lines.append(f"<rect x='{x}' y='{y}' width='12' height='12' fill='{COLOURS[part]}'/>")
        lines.append(f"<text x='{x + 18}' y='{y + 10}'>{escape(part.value)}</text>")
    if note:
        lines.append(f"<text x='12' y='{height - 8}' fill='#555555'>{escape(note)}</text>")
    return "\n".join([*lines, "</svg>", ""])


def _row(label: str, shares: Mapping[Part, float], top: int, room: int) -> list[str]:
    middle = top + BAR - 5
    if not shares:
        return [f"<text x='12' y='{middle}' font-weight='bold'>{escape(label)}</text>"]
    lines = [f"<text x='{LABEL - 8}' y='{middle}' text-anchor='end'>{escape(label)}</text>"]
    left = float(LABEL)
    for part, colour in COLOURS.items():
        width = max(shares.get(part, 0.0), 0.0) * room
        if width >= 0.05:
            lines.append(
                f"<rect x='{left:.2f}' y='{top}' width='{width:.2f}' height='{BAR}' fill='{colour}'>"
                f"<title>{escape(part.value)}: {shares[part]:.2%}</title></rect>"
            )
            left += width
    useful = shares.get(Part.USEFUL, 0.0)
    lines.append(f"<text x='{LABEL + room + 8}' y='{middle}'>{useful:.1%}</text>")
    return lines
