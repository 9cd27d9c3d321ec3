"""A life in tables, and a web page with the drawing and these tables. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from html import escape

from crds.elasticworker import ExitClass
from dlr.job.failures import FOLLOWED, WAITED
from dlr.job.timeline import drawing
from dlr.job.timeline.blame import Failure
from dlr.job.timeline.drawing import draw
from dlr.job.timeline.life import Lane, Life, clock_of, title
from dlr.job.timeline.outages import Outage, outages_by_failure, own_failures
from dlr.job.tones import STYLE, TONE_OF
from dlr.job.wording import duration, loss, plain

WIDE = ("WHY", "MESSAGE")
"""Columns of sentences."""


@dataclass(frozen=True)
class Table:
    heading: str
    columns: Sequence[str]
    rows: Sequence[Sequence[str]]


def tables_of(life: Life) -> list[Table]:
    """Return the tables that have rows."""
    failed = sorted(
        ((failure, lane) for lane in life.all_lanes for failure in lane.failures),
        key=lambda pair: (pair[0].at, pair[0].follows),
    )
    members, pods, costs = life.member_word, life.group_workers or 1, outages_by_failure(life)
    made = [
        Table(
            "States of the job",
            ("FROM", "UTC", "FOR", "STATE", "WHY"),
            [(*_when(life, s.begin), loss(s.seconds), s.state, s.text) for s in life.states],
        ),
        Table(
            f"Failures{_of_all(life)}",
            ("AT", "UTC", members.upper(), "CLASS", "COST", "MESSAGE"),
            [_failure_row(life, failure, lane, costs.get((failure, lane))) for failure, lane in failed],
        ),
        Table(
            f"{life.round_word.capitalize()}s",
            ("AT", "UTC", life.round_word.upper(), f"{members.upper()}S", "WHY"),
            [(*_when(life, r.at), str(r.number), r.members, r.reason) for r in life.rounds],
        ),
        Table(
            f"{members.capitalize()}s",
            (members.upper(), "NODE", "PODS", "FAILURES"),
            [
                (each.title, each.node, str(pods + len(each.starts)), str(len(each.failures)))
                for each in life.lanes
            ],
        ),
    ]
    return [table for table in made if table.rows]


def _of_all(life: Life) -> str:
    """Say how many failures there were in all, where the lanes have not all of them."""
    shown = len(own_failures(life))
    return f", the last {shown} of {life.failures}" if shown < life.failures else ""


def _when(life: Life, at: float) -> tuple[str, str]:
    return duration(at), clock_of(life, at)


def _failure_row(life: Life, failure: Failure, lane: Lane, outage: Outage | None) -> tuple[str, ...]:
    what, text = _words(failure)
    cost = "" if outage is None else loss(outage.seconds)
    return *_when(life, failure.at), lane.title, what, cost, text


def _words(failure: Failure) -> tuple[str, str]:
    """Return class and message; a failure that only followed from another's has no message of its own."""
    if failure.follows:
        return WAITED if failure.what == ExitClass.HANG else FOLLOWED, ""
    return failure.what, failure.text


def page(life: Life, verdict: str) -> str:
    """Return a web page: the verdict, the drawing, and the tables. It loads nothing from anywhere."""
    heading, tables = escape(title(life)), "".join(map(_html, tables_of(life)))
    return (
        f'<!doctype html>\n<html lang="en"><head><meta charset="utf-8"><title>{heading}</title>'
        '<meta name="viewport" content="width=device-width, initial-scale=1">'
        f"<style>{STYLE}{drawing.STYLE}</style></head>\n<body><main>\n<h1>{escape(verdict)}</h1>\n"
        f'<p class="quiet">{heading}</p>\n<section>{draw(life)}</section>\n{tables}</main></body></html>\n'
    )


def _html(table: Table) -> str:
    rows = ["".join(map(_cell, table.columns, row)) for row in table.rows]
    head = "".join(f'<th scope="col">{escape(column)}</th>' for column in table.columns)
    body = "".join(f"<tr>{row}</tr>\n" for row in rows)
    shown = f"<table><thead><tr>{head}</tr></thead>\n<tbody>{body}</tbody></table>"
    return f'<section><h2>{escape(table.heading)}</h2>\n<div class="scroll">{shown}</div></section>\n'


def _cell(column: str, text: str) -> str:
    shown = escape(plain(text))
    if column in WIDE:
        return f'<td class="wide">{shown}</td>'
    state = f' data-state="{shown}"' if text in TONE_OF else ""
    return f'<td data-label="{column.lower()}"{state}>{shown}</td>'
