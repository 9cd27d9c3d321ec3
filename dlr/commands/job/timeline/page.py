"""The timeline as a web page: the drawing, and the same in tables. It loads nothing from anywhere."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from html import escape

from dlr.job.timeline.life import Life, clock_of, title
from dlr.job.wording import duration, plain

STYLE = """
:root { color-scheme: light dark; }
body { font: 14px/1.45 system-ui, sans-serif; margin: 1.5rem; color: #222; background: #fff; }
svg { width: 100%; height: auto; max-width: 1400px; }
.phone { display: none; }
.table { overflow-x: auto; }
table { border-collapse: collapse; margin: 0.4rem 0 1.4rem; }
th, td { text-align: left; vertical-align: top; padding: 0.2rem 0.9rem 0.2rem 0; }
th, td { border-bottom: 1px solid #8884; }
td { overflow-wrap: anywhere; min-width: 3.5em; }
h2 { font-size: 1.05rem; margin: 1.4rem 0 0; }
@media (max-width: 700px) {
  body { margin: 0.6rem; }
  .desk { display: none; }
  .phone { display: block; }
}
@media (prefers-color-scheme: dark) { body { color: #e6e6e6; background: #16181b; } }
"""


def page(life: Life, desk: str, phone: str) -> str:
    """`desk` and `phone` are the drawing as SVG, for a wide window and for a narrow one."""
    failures = sorted(
        (failure.at, lane.worker, failure.what, failure.text, "yes" if failure.follows else "")
        for lane in life.lanes
        for failure in lane.failures
    )
    parts = [
        _table(
            "States of the job",
            ("from", "UTC", "for", "state", "why"),
            (
                (duration(s.begin), clock_of(life, s.begin), duration(s.seconds), s.state, s.text)
                for s in life.states
            ),
        ),
        _table(
            "Failures",
            ("at", "UTC", "worker", "class", "what it said", "after another's"),
            ((duration(at), clock_of(life, at), *rest) for at, *rest in failures),
        ),
        _table(
            "Rounds",
            ("at", "UTC", "round", "workers", "why"),
            ((duration(r.at), clock_of(life, r.at), str(r.number), r.members, r.reason) for r in life.rounds),
        ),
        _table(
            "Workers",
            ("worker", "node", "Pods", "failures"),
            (
                (lane.worker, lane.node, str(1 + len(lane.starts)), str(len(lane.failures)))
                for lane in life.lanes
            ),
        ),
    ]
    heading = escape(title(life))
    return (
        f'<!doctype html>\n<html lang="en"><head><meta charset="utf-8"><title>{heading}</title>'
        '<meta name="viewport" content="width=device-width, initial-scale=1">'
        f"<style>{STYLE}</style></head>\n<body>\n"
        f'<div class="desk">{desk}</div>\n<div class="phone">{phone}</div>\n'
        f"{''.join(parts)}</body></html>\n"
    )


def _table(heading: str, columns: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    body = "".join(f"<tr>{''.join(f'<td>{escape(plain(cell))}</td>' for cell in row)}</tr>\n" for row in rows)
    if not body:
        return ""
    head = "".join(f"<th>{escape(column)}</th>" for column in columns)
    table = f"<table><tr>{head}</tr>\n{body}</table>"
    return f'<h2>{escape(heading)}</h2>\n<div class="table">{table}</div>\n'
