"""The timeline as a web page: the drawing, and the same in tables. It loads nothing from anywhere."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from html import escape

from dlr.commands.job.timeline.drawing import title
from dlr.commands.job.timeline.life import Life
from dlr.commands.output import duration, plain

STYLE = """
body { font: 14px/1.45 system-ui, sans-serif; margin: 1.5rem; color: #222; background: #fff; }
svg { width: 100%; height: auto; max-width: 1400px; }
table { border-collapse: collapse; margin: 0.4rem 0 1.4rem; }
th, td { text-align: left; vertical-align: top; padding: 0.2rem 0.9rem 0.2rem 0; }
th, td { border-bottom: 1px solid #e4e4e4; }
h2 { font-size: 1.05rem; margin: 1.4rem 0 0; }
"""


def page(life: Life, svg: str) -> str:
    failures = sorted(
        (failure.at, lane.worker, failure.what, failure.text, "yes" if failure.follows else "")
        for lane in life.lanes
        for failure in lane.failures
    )
    parts = [
        _table(
            "States of the job",
            ("from", "for", "state", "why"),
            ((duration(s.begin), duration(s.seconds), s.state, s.text) for s in life.states),
        ),
        _table(
            "Failures",
            ("at", "worker", "class", "what it said", "after another's"),
            ((duration(at), *rest) for at, *rest in failures),
        ),
        _table(
            "Rounds",
            ("at", "round", "workers", "why"),
            ((duration(each.at), str(each.number), each.members, each.reason) for each in life.rounds),
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
        f"<style>{STYLE}</style></head>\n<body>\n{svg}\n{''.join(parts)}</body></html>\n"
    )


def _table(heading: str, columns: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    body = "".join(f"<tr>{''.join(f'<td>{escape(plain(cell))}</td>' for cell in row)}</tr>\n" for row in rows)
    if not body:
        return ""
    head = "".join(f"<th>{escape(column)}</th>" for column in columns)
    return f"<h2>{escape(heading)}</h2>\n<table><tr>{head}</tr>\n{body}</table>\n"
