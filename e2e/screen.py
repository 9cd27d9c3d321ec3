"""Screen of the demo: a table of nodes and workers, where there is a terminal, and a timeline."""

from __future__ import annotations

import time
from dataclasses import dataclass
from types import TracebackType

from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.panel import Panel
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text

ROWS_ABOVE_TIMELINE = 12
"""Title and table. Where there is no room while it runs, the oldest lines are left out."""
IN_SERVICE = "in service"
NODE_STYLES = {"healthy": "green", "FAULTY": "bold red", "not checked": ""}


@dataclass(frozen=True)
class WorkerRow:
    """One worker as the table shows it."""

    index: int
    pod: str
    node: str
    state: str
    step: int


@dataclass(frozen=True)
class NodeRow:
    """One node as the table shows it."""

    name: str
    check: str
    """The result of its node check."""
    service: str


class Screen:
    """A live display on a terminal; elsewhere the lines of its timeline, so that logs can be read."""

    def __init__(self, title: str, last_step: int) -> None:
        self._console = Console(highlight=False)
        self._title = title
        self._last_step = last_step
        self._began = time.monotonic()
        self._workers: list[WorkerRow] = []
        self._nodes: list[NodeRow] = []
        self._world = ""
        self._said: list[Text] = []
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
            self._live.update(self._picture(self._said))
            self._live.stop()

    def say(self, text: str, style: str = "") -> None:
        """Add a line to the timeline."""
        line = Text(f"{time.monotonic() - self._began:6.1f} s  ") + Text(text, style=style)
        self._said.append(line)
        if self._is_plain:
            self._console.print(line, soft_wrap=True)
        else:
            self._draw()

    def show(self, world: str, workers: list[WorkerRow], nodes: list[NodeRow]) -> None:
        """Show the workers and nodes as they are now."""
        self._world, self._workers, self._nodes = world, workers, nodes
        if not self._is_plain:
            self._draw()

    def _draw(self) -> None:
        lines = self._said[-max(self._console.height - ROWS_ABOVE_TIMELINE, 1) :]
        self._live.update(self._picture(lines), refresh=True)

    def _picture(self, lines: list[Text]) -> Group:
        return Group(Panel(self._title), self._table(), *lines)

    def _table(self) -> Table:
        """Return a line for each node, with the worker on it, and one for each worker without a node."""
        table = Table(
            expand=True, box=None, caption=self._world, caption_justify="left", padding=(0, 1, 0, 0)
        )
        for heading in ("node", "check", "Pod", "worker", f"step of {self._last_step}", ""):
            table.add_column(heading, header_style="bold", no_wrap=True)
        on = {worker.node: worker for worker in self._workers}
        for node in self._nodes:
            style = NODE_STYLES.get(node.check, "yellow")
            found = node.check if node.service == IN_SERVICE else f"{node.check}, {node.service}"
            table.add_row(node.name, Text(found, style=style), *self._cells(on.get(node.name)))
        for worker in self._workers:
            if not worker.node:
                table.add_row("", "", *self._cells(worker))
        return table

    def _cells(self, worker: WorkerRow | None) -> tuple[RenderableType, ...]:
        if worker is None:
            return ("", "", "", "")
        state = Text(worker.state, style="green" if worker.state in ("training", "done") else "yellow")
        bar = ProgressBar(total=self._last_step, completed=worker.step, width=16)
        return (worker.pod, state, str(worker.step), bar)
