"""Output of `dlr job status`: one screen on a terminal, whatever the number of workers; elsewhere all."""

from __future__ import annotations

from collections.abc import Sequence

from rich.console import Console, Group, RenderableType
from rich.table import Table
from rich.text import Text

from controller.wording import counted
from dlr.commands.output import NARROW_WIDTH, cell, plain_lines, table, verdict_line
from dlr.job import report
from dlr.job.case import Case
from dlr.job.facts import Fact, facts_of, remarks_of
from dlr.job.members import members_of
from dlr.job.verdict import verdict
from dlr.job.wording import age

MOST_EVENTS = 10
FEWEST_EVENTS = 3
BAR_WIDTH = 24
LINES_AROUND_TABLES = 5
"""An empty line and a header per table, and the cursor's line."""


def render(case: Case, console: Console) -> RenderableType:
    """Draw the whole status, or on a terminal as much as fits."""
    head, members = _head(case, with_bar=console.is_terminal), members_of(case)
    notes = [cell(note) for note in members.notes]
    columns, rows, event_count, taken = members.columns, members.rows, len(case.events), 0
    if console.is_terminal:
        taken = len(console.render_lines(Group(head, *notes))) + LINES_AROUND_TABLES
        most, event_count = room(console.height - taken, len(rows), min(len(case.events), MOST_EVENTS))
        rows = members.most_telling(most)
        if console.width <= NARROW_WIDTH:
            columns, rows = members.narrow(rows)
    parts: list[RenderableType] = [head]
    if rows:
        lines = [tuple(row[column] for column in columns) for row in rows]
        parts += [Text(""), _members(columns, lines, console, taken + event_count)]
        if left_out := len(members.rows) - len(rows):
            more = counted(left_out, f"more {members.noun}")
            parts.append(Text(f"… and {more}: dlr job status … | less", "dim"))
        parts += notes
    return Group(*parts, *_events(case, console, event_count))


def _events(case: Case, console: Console, count: int) -> list[RenderableType]:
    events = case.events[-count:]
    if not events:
        return []
    rows = [report.event_row(event, case.job, case.now) for event in events]
    return [Text(""), table(report.EVENT_COLUMNS, rows, console.width if console.is_terminal else None)]


def _members(
    columns: Sequence[str], rows: Sequence[report.Row], console: Console, other_lines: int
) -> Table | Text:
    """Return the table of members, with failures in full if it fits, otherwise one line each."""
    if not console.is_terminal:
        return Text("\n".join(plain_lines(columns, rows)), no_wrap=True)
    whole = table(columns, rows)
    fits = len(console.render_lines(whole)) + other_lines <= console.height
    return whole if fits else table(columns, rows, console.width)


def room(lines: int, worker_count: int, event_count: int) -> tuple[int, int]:
    """Divide the lines between workers and Events, with at least one of each."""
    if worker_count + event_count <= lines:
        return worker_count, max(event_count, 1)
    most = max(1, lines - min(event_count, FEWEST_EVENTS))
    if worker_count <= most:
        return worker_count, max(1, min(event_count, lines - worker_count))
    shown = max(1, most - 1)  # one line names the number of omitted rows
    return shown, max(1, min(event_count, lines - shown - 1))


def _head(case: Case, *, with_bar: bool) -> RenderableType:
    """Draw the verdict, with the facts below it."""
    top = verdict(case)
    head = Table.grid(padding=(0, 2))
    head.add_column(no_wrap=True)
    head.add_column(overflow="fold")
    metadata = case.job["metadata"]
    made = age(metadata["creationTimestamp"], case.now)
    lines = [("Job", cell(f"{metadata['namespace']}/{metadata['name']}, made {made} ago"))]
    facts = [*remarks_of(case), *facts_of(case)]
    lines += [(fact.label, _text(case, fact, with_bar=with_bar)) for fact in facts]
    if report.phase(case.job) == "Failed" and case.status.get("lastFailure"):
        lines.append(("", Text(f"its log: dlr job logs {case.in_command} --failed", "dim")))
    for label, line in lines:
        head.add_row(Text(label, style="dim"), line)
    return Group(verdict_line(top.word, top.text), head)


def _text(case: Case, fact: Fact, *, with_bar: bool) -> Text:
    line = cell(fact.text)
    if fact.label == "Phase":
        word, _, rest = fact.text.partition(" ")
        return Text.assemble(cell(word), " ", cell(rest))
    if with_bar and fact.label == "Progress" and case.progress and case.progress.share is not None:
        full = round(case.progress.share * BAR_WIDTH)
        bar = Text.assemble(("━" * full, "green"), ("─" * (BAR_WIDTH - full), "dim"), "  ")
        return bar + line
    return line
