"""`dlr job status` drawn: one screen on a terminal, however many workers there are; everything elsewhere."""

from __future__ import annotations

from collections.abc import Sequence

from rich.console import Console, Group, RenderableType
from rich.table import Table
from rich.text import Text

from controller.wording import counted
from crds.grouping import group_name, is_grouped
from dlr.commands.output import NARROW_WIDTH, cell, plain_lines, table, verdict_line
from dlr.job import group_rows, report, workers
from dlr.job.case import Case
from dlr.job.facts import Fact, facts_of, remarks_of
from dlr.job.goodput import time_by_state
from dlr.job.tones import terminal_style
from dlr.job.verdict import verdict
from dlr.job.wording import age, in_command

MOST_EVENTS = 10
FEWEST_EVENTS = 3
BAR_WIDTH = 24
LINES_AROUND_TABLES = 5
"""An empty line and a header a table, and the cursor's line."""


def render(case: Case, console: Console) -> RenderableType:
    """Draw all of it, or on a terminal as much as there is room for."""
    head = _head(case, with_bars=console.is_terminal)
    if is_grouped(case.job):
        return _with_groups(case, console, head)
    notes = [cell(note) for note in workers.notes(case.workers)]
    shown, event_count, taken = case.workers, MOST_EVENTS, 0
    if console.is_terminal:
        taken = len(console.render_lines(Group(head, *notes))) + LINES_AROUND_TABLES
        lines, most_events = console.height - taken, min(len(case.events), MOST_EVENTS)
        most_workers, event_count = room(lines, len(case.workers), most_events)
        shown = workers.most_telling(case.job, case.workers, most_workers)
    left_out = len(case.workers) - len(shown)
    parts: list[RenderableType] = [head]
    if worker_rows := workers.rows(case, shown):
        parts += [Text(""), _workers(worker_rows, console, taken + event_count)]
        if left_out:
            parts.append(Text(f"… and {counted(left_out, 'more worker')}: dlr job status … | less", "dim"))
        parts += notes
    return Group(*parts, *_events(case, console, event_count))


def _with_groups(case: Case, console: Console, head: RenderableType) -> Group:
    """Draw a job with replica groups: a line for each group in place of the workers'."""
    rows, event_count = group_rows.rows(case.job, case.workers, case.life), MOST_EVENTS
    columns: Sequence[str] = group_rows.COLUMNS
    width: int | None = None
    left_out = 0
    if console.is_terminal:
        lines = console.height - len(console.render_lines(head)) - LINES_AROUND_TABLES
        most, event_count = room(lines, len(rows), min(len(case.events), MOST_EVENTS))
        left_out, width = max(0, len(rows) - most), console.width
        rows = group_rows.most_telling(rows, most)
        if console.width <= NARROW_WIDTH:
            columns, rows = group_rows.NARROW_COLUMNS, [group_rows.narrow(row) for row in rows]
    parts: list[RenderableType] = [head]
    if rows:
        parts += [Text(""), table(columns, rows, width)]
        if left_out:
            parts.append(Text(f"… and {counted(left_out, 'more group')}: dlr job status … | less", "dim"))
        one = in_command(case.job["metadata"], group_name(case.name, 0))
        parts.append(Text(f"one group and its workers: dlr job status {one}", "dim"))
    return Group(*parts, *_events(case, console, event_count))


def _events(case: Case, console: Console, count: int) -> list[RenderableType]:
    events = case.events[-count:]
    if not events:
        return []
    rows = [report.event_row(event, case.job, case.now) for event in events]
    return [Text(""), table(report.EVENT_COLUMNS, rows, console.width if console.is_terminal else None)]


def _workers(rows: Sequence[report.Row], console: Console, other_lines: int) -> Table | Text:
    """Return the table of workers: failures in full where all of it fits, else a line each."""
    if not console.is_terminal:
        return Text("\n".join(plain_lines(workers.COLUMNS, rows)), no_wrap=True)
    columns: Sequence[str] = workers.COLUMNS
    if console.width <= NARROW_WIDTH:
        columns, rows = workers.NARROW_COLUMNS, [workers.narrow(row) for row in rows]
    whole = table(columns, rows)
    fits = len(console.render_lines(whole)) + other_lines <= console.height
    return whole if fits else table(columns, rows, console.width)


def room(lines: int, worker_count: int, event_count: int) -> tuple[int, int]:
    """Share out so many lines to workers and Events, one of each at the very least."""
    if worker_count + event_count <= lines:
        return worker_count, max(event_count, 1)
    most = max(1, lines - min(event_count, FEWEST_EVENTS))
    if worker_count <= most:
        return worker_count, max(1, min(event_count, lines - worker_count))
    shown = max(1, most - 1)  # a line says how many are left out
    return shown, max(1, min(event_count, lines - shown - 1))


def _head(case: Case, *, with_bars: bool) -> RenderableType:
    """Draw the verdict, and facts below it."""
    top = verdict(case)
    head = Table.grid(padding=(0, 2))
    head.add_column(no_wrap=True)
    head.add_column(overflow="fold")
    metadata = case.job["metadata"]
    made = age(metadata["creationTimestamp"], case.now)
    lines = [("Job", cell(f"{metadata['namespace']}/{metadata['name']}, made {made} ago"))]
    facts = [*remarks_of(case), *facts_of(case)]
    lines += [(fact.label, _text(case, fact, with_bar=with_bars)) for fact in facts]
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
        return _bar([(case.progress.share, "green")]) + line
    if with_bar and fact.label == "Time" and case.account:
        seconds = time_by_state(case.account, case.job, case.now)
        for state in seconds:
            line.highlight_words([f"{state} "], terminal_style(state))  # so that the line is the bar's legend
        total = sum(seconds.values())
        return _bar([(value / total, terminal_style(state)) for state, value in seconds.items()]) + line
    return line


def _bar(shares: Sequence[tuple[float, str]]) -> Text:
    """Return stretches of a bar, each as long as its share; the rest is a thin line."""
    bar, reached, drawn = Text(), 0.0, 0
    for share, style in shares:
        reached += share
        until = round(reached * BAR_WIDTH)
        bar.append("━" * (until - drawn), style)
        drawn = until
    bar.append("─" * (BAR_WIDTH - drawn), "dim")
    return bar.append("  ")
