"""A life in tables. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from dlr.job.timeline.episodes import PastFailure
from dlr.job.timeline.life import JobTimeline, clock_of
from dlr.job.wording import duration, loss


@dataclass(frozen=True)
class Table:
    heading: str
    columns: Sequence[str]
    rows: Sequence[Sequence[str]]


def tables_of(life: JobTimeline) -> list[Table]:
    """Return the tables that have rows."""
    members, pods = life.member_word, life.group_workers or 1
    made = [
        Table(
            "States of the job",
            ("FROM", "UTC", "FOR", "STATE", "WHY"),
            [(*_when(life, s.begin), loss(s.seconds), s.state, s.text) for s in life.states],
        ),
        Table(
            f"Failures{_of_all(life)}",
            ("AT", "UTC", members.upper(), "CLASS", "COST", "MESSAGE"),
            [_failure_row(life, each) for each in life.failures],
        ),
        Table(
            "Planned changes",
            ("AT", "UTC", "STATE", "PAUSE", "WHY"),
            [(*_when(life, c.at), c.state, loss(c.pause.seconds), c.text) for c in life.changes],
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


def _of_all(life: JobTimeline) -> str:
    """Say how many failures there were in all, where the history has not all of them."""
    shown = len(life.failures)
    return f", the last {shown} of {life.failure_count}" if shown < life.failure_count else ""


def _when(life: JobTimeline, at: float) -> tuple[str, str]:
    return duration(at), clock_of(life, at)


def _failure_row(life: JobTimeline, failure: PastFailure) -> tuple[str, ...]:
    cost = "" if failure.outage is None else loss(failure.outage.seconds)
    text = "; ".join(filter(None, (failure.survivors, failure.text)))
    return *_when(life, failure.at), failure.who, failure.what, cost, text
