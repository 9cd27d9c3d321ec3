"""`dlr job status` drawn: one screen on a terminal, however many workers there are; everything elsewhere.

Drawing only; what is said comes from `report`, `workers`, `progress` and `failures`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from rich.console import Console, Group, RenderableType
from rich.table import Table
from rich.text import Text

from controller.wording import counted
from crds.job_status import Goodput, JobState
from dlr.commands.output import (
    NARROW_WIDTH,
    STYLES,
    cell,
    table,
)
from dlr.job import report, workers
from dlr.job.checkpoints import checkpoints_line
from dlr.job.failures import failures_line, job_failure_line
from dlr.job.goodput import (
    account_of,
    goodput_line,
    time_by_state,
    time_line,
)
from dlr.job.progress import Progress, progress_line, progress_of
from dlr.job.shards import sets_of, shards_line
from dlr.job.states import color
from dlr.job.wording import age, duration

JSON = dict[str, Any]

MOST_EVENTS = 10
FEWEST_EVENTS = 3
BAR_WIDTH = 24
LINES_AROUND_TABLES = 5
"""An empty line and a header a table, and the cursor's line."""


@dataclass(frozen=True)
class Snapshot:
    """A job with its workers in order and its Events, the oldest first, as found at one time."""

    job: JSON
    workers: list[JSON]
    events: list[JSON]

    def as_json(self) -> JSON:
        return {"job": self.job, "workers": self.workers, "events": self.events}


def render(snapshot: Snapshot, now: datetime, console: Console) -> RenderableType:
    """All of it, or on a terminal as much as there is room for."""
    head = _head(snapshot, now, with_bars=console.is_terminal)
    notes = [cell(note) for note in workers.notes(snapshot.workers)]
    shown, event_count, taken = snapshot.workers, MOST_EVENTS, 0
    if console.is_terminal:
        taken = len(console.render_lines(Group(head, *notes))) + LINES_AROUND_TABLES
        most_workers, event_count = room(
            console.height - taken, len(snapshot.workers), min(len(snapshot.events), MOST_EVENTS)
        )
        shown = workers.most_telling(snapshot.job, snapshot.workers, most_workers)
    left_out = len(snapshot.workers) - len(shown)
    more = (
        [Text(f"… and {counted(left_out, 'more worker')}: dlr job status … | less", "dim")]
        if left_out
        else []
    )
    parts: list[RenderableType] = [head]
    width = console.width if console.is_terminal else None
    if rows := workers.rows(snapshot.job, shown, now):
        parts += [Text(""), _workers(rows, console, taken + event_count), *more, *notes]
    return Group(*parts, *_events(snapshot, event_count, now, width))


def _workers(rows: Sequence[workers.Row], console: Console, other_lines: int) -> Table:
    """Return the table of workers: failures in full where all of it fits, else a line each."""
    if not console.is_terminal:
        return table(workers.COLUMNS, rows)
    columns: Sequence[str] = workers.COLUMNS
    if console.width <= NARROW_WIDTH:
        columns, rows = workers.NARROW_COLUMNS, [workers.narrow(row) for row in rows]
    whole = table(columns, rows)
    fits = len(console.render_lines(whole)) + other_lines <= console.height
    return whole if fits else table(columns, rows, console.width)


def room(lines: int, worker_count: int, event_count: int) -> tuple[int, int]:
    """How many workers and how many Events go into so many lines, one of each at the very least."""
    if worker_count + event_count <= lines:
        return worker_count, max(event_count, 1)
    most = max(1, lines - min(event_count, FEWEST_EVENTS))
    if worker_count <= most:
        return worker_count, max(1, min(event_count, lines - worker_count))
    shown = max(1, most - 1)  # a line says how many are left out
    return shown, max(1, min(event_count, lines - shown - 1))


def _head(snapshot: Snapshot, now: datetime, *, with_bars: bool) -> Table:
    head = Table.grid(padding=(0, 2))
    head.add_column(no_wrap=True)
    head.add_column(overflow="fold")
    for label, line in _lines(snapshot, now, with_bars=with_bars):
        head.add_row(Text(label, style="bold"), line)
    return head


def _lines(snapshot: Snapshot, now: datetime, *, with_bars: bool) -> list[tuple[str, Text]]:
    job = snapshot.job
    status, metadata = job.get("status", {}), job["metadata"]
    made = age(metadata["creationTimestamp"], now)
    account = account_of(job, snapshot.workers, now)
    lines = [
        ("Job", cell(f"{metadata['namespace']}/{metadata['name']}, made {made} ago")),
        ("Phase", _phase(job, account, now)),
        ("Workers", cell(report.workers_line(job))),
        ("World", cell(report.world_line(job, now))),
    ]
    if progress := progress_of(job, snapshot.workers, account.last_step if account else None):
        lines.append(("Progress", _progress(progress, report.is_finished(job), with_bar=with_bars)))
    if line := checkpoints_line(job, snapshot.workers):
        lines.append(("Checkpoints", cell(line)))
    if account:
        if line := goodput_line(account):
            lines.append(("Goodput", cell(line)))
        if seconds := time_by_state(account, job, now):
            lines.append(("Time", _time(seconds, with_bar=with_bars)))
    lines += [("Shards", cell(shards_line(each))) for each in sets_of(job, snapshot.workers, now)]
    if failures := failures_line(job, snapshot.workers):
        lines.append(("Failures", cell(failures)))
    if failure := status.get("lastFailure"):
        lines.append(("Last failure", cell(job_failure_line(failure, now))))
        if report.phase(job) == "Failed":
            lines.append(("", Text(f"its log: dlr job logs {metadata['name']} --failed", "dim")))
    return lines + [(kind, cell(text)) for kind, text in report.remarks(job)]


def _progress(progress: Progress, is_finished: bool, *, with_bar: bool) -> Text:
    line = cell(progress_line(progress, is_finished=is_finished))
    return _bar([(progress.share, "green")]) + line if with_bar and progress.share is not None else line


def _time(seconds: Mapping[str, float], *, with_bar: bool) -> Text:
    line = cell(time_line(seconds))
    if not with_bar:
        return line
    for state in seconds:
        line.highlight_words([f"{state} "], color(state))  # so that the line is the bar's legend
    total = sum(seconds.values())
    return _bar([(value / total, color(state)) for state, value in seconds.items()]) + line


def _phase(job: JSON, account: Goodput | None, now: datetime) -> Text:
    word, _, rest = report.phase_line(job, now).partition(" ")
    line = Text.assemble(cell(word), " ", cell(rest))
    if account and not report.is_finished(job) and account.state != word:
        seconds = (now - account.since).total_seconds()
        until = " until the first step" if (word, account.state) == ("Running", JobState.FORMING) else ""
        line.append(f"; {account.state}{until} for {duration(seconds)}")
    return line


def _events(snapshot: Snapshot, count: int, now: datetime, width: int | None) -> list[RenderableType]:
    """The last ones. A terminal is narrow: there the message has the room of two columns."""
    events = snapshot.events[-count:]
    if not events:
        return []
    if width is None:
        shown = table(report.EVENT_COLUMNS, [report.event_row(event, now) for event in events])
    else:
        shown = short_events(snapshot.job, events, now, width)
    return [Text(""), shown]


def short_events(job: JSON, events: Sequence[JSON], now: datetime, width: int | None = None) -> Table:
    """Return the table of Events for a narrow terminal; one line each if a width is given."""
    rows = [report.short_event_row(event, job, now) for event in events]
    styled = [(seen, Text(reason, STYLES.get(type_, "")), message) for seen, type_, reason, message in rows]
    return table(report.SHORT_EVENT_COLUMNS, styled, width)


def _bar(shares: Sequence[tuple[float, str]]) -> Text:
    """Stretches of a bar, each so long as its share; what is left over stays dark."""
    bar, reached, drawn = Text(), 0.0, 0
    for share, style in shares:
        reached += share
        until = round(reached * BAR_WIDTH)
        bar.append("━" * (until - drawn), style)
        drawn = until
    bar.append("━" * (BAR_WIDTH - drawn), "bright_black")
    return bar.append("  ")
