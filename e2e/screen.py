"""What the demo shows: a table of the workers and a timeline; plain lines where there is no terminal."""

from __future__ import annotations

import time
from dataclasses import dataclass
from types import TracebackType

from rich.console import Console, Group
from rich.live import Live
from rich.panel import Panel
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text

PLAIN_PROGRESS_SECONDS = 2.0


@dataclass(frozen=True)
class WorkerRow:
    """One worker as the table shows it."""

    index: int
    pod: str
    node: str
    state: str
    step: int

    def __str__(self) -> str:
        return f"worker {self.index} {self.state}" + (f" at step {self.step}" if self.step else "")


class Screen:
    """A live display on a terminal; elsewhere the same story as lines, so that logs can be read."""

    def __init__(self, title: str, last_step: int) -> None:
        self._console = Console(highlight=False)
        self._title = title
        self._last_step = last_step
        self._began = time.monotonic()
        self._workers: list[WorkerRow] = []
        self._world = ""
        self._said: list[Text] = []
        self._printed_progress_at = 0.0
        self._live = Live(console=self._console, refresh_per_second=8, transient=False)

    @property
    def _is_plain(self) -> bool:
        return not self._console.is_terminal

    def __enter__(self) -> Screen:
        if self._is_plain:
            self._console.print(self._title, soft_wrap=True)
        else:
            self._live.start()
            self._draw()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if not self._is_plain:
            self._live.stop()

    def say(self, text: str, style: str = "") -> None:
        """A line of the timeline."""
        line = Text(f"{time.monotonic() - self._began:6.1f} s  ") + Text(text, style=style)
        self._said.append(line)
        if self._is_plain:
            self._console.print(line, soft_wrap=True)
        else:
            self._draw()

    def show(self, world: str, workers: list[WorkerRow]) -> None:
        """The workers as they are now."""
        self._world, self._workers = world, workers
        if not self._is_plain:
            self._draw()
        elif time.monotonic() - self._printed_progress_at > PLAIN_PROGRESS_SECONDS and workers:
            self._printed_progress_at = time.monotonic()
            states = ", ".join(map(str, workers))
            since = time.monotonic() - self._began
            self._console.print(f"{since:6.1f} s    {world}: {states}", soft_wrap=True)

    def _draw(self) -> None:
        table = Table(expand=True, caption=self._world, caption_justify="left")
        for heading in ("worker", "pod", "node", "state", f"step of {self._last_step}", ""):
            table.add_column(heading)
        for row in self._workers:
            table.add_row(
                str(row.index),
                row.pod,
                row.node,
                Text(row.state, style="green" if row.state in ("training", "done") else "yellow"),
                str(row.step),
                ProgressBar(total=self._last_step, completed=row.step, width=24),
            )
        self._live.update(Group(Panel(self._title), table, *self._said), refresh=True)
