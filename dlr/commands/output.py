"""Output of commands: tables for people, JSON for programs.

On a terminal tables fit its width and have colours. Elsewhere they are plain columns of full width, one line
per entry, for grep and awk. Texts from the cluster are never interpreted, neither as rich's markup nor as
control sequences of a terminal.

Importing rich takes as long as the rest of a short command, so it is imported only where it is used.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Iterable, Sequence
from enum import StrEnum
from typing import TYPE_CHECKING, Any
from unicodedata import east_asian_width

from dlr.job.tones import terminal_style
from dlr.job.wording import plain

if TYPE_CHECKING:
    from rich.console import Console, RenderableType
    from rich.table import Table
    from rich.text import Text

LOG_FORMAT = "%(asctime)s %(levelname)s %(name)s %(message)s"
"""Format of log lines of long-running commands."""
UNLIMITED_WIDTH = 10_000
UNKNOWN_SIZE = (80, 24)
NARROW_WIDTH = 120
"""Widest terminal on which less important columns are left out."""
COLUMN_GAP = 2
FEWEST_CHARACTERS = 12
"""Shortest useful width of the last column; to make room for it, the widest other column is cut."""


class Format(StrEnum):
    TABLE = "table"
    JSON = "json"


def is_narrow() -> bool:
    """Whether stdout is a terminal without room for all columns."""
    return sys.stdout.isatty() and console().width <= NARROW_WIDTH


def console() -> Console:
    """Return a console for the present stdout, which tests may replace."""
    from rich.console import Console

    if sys.stdout.isatty():
        found = Console(highlight=False)
        if 0 in found.size:  # COLUMNS=0, or a terminal of unknown size
            found.size = UNKNOWN_SIZE
        return found
    return Console(highlight=False, width=UNLIMITED_WIDTH, force_terminal=False)


def show(renderable: RenderableType) -> None:
    screen = console()
    if screen.is_terminal:
        screen.print(renderable)
        return
    with screen.capture() as capture:
        screen.print(renderable)
    print("\n".join(line.rstrip() for line in capture.get().splitlines()))


def verdict_line(word: str, text: str) -> Text:
    """Return the first line of a screen, on a terminal with a mark in the colour of the state.

    Args:
        word: a word with a tone.
    """
    from rich.text import Text

    mark = ("● ", terminal_style(word)) if sys.stdout.isatty() else ""
    return Text.assemble(mark, (plain(text), "bold"))


def show_table(headers: Sequence[str], rows: Sequence[Sequence[object]], *, one_line: bool = False) -> None:
    """Print a table.

    Args:
        one_line: whether to cut each row to one line of a terminal.
    """
    if sys.stdout.isatty():
        show(table(headers, rows, console().width if one_line else None))
        return
    print("\n".join(plain_lines(headers, rows)))


def plain_lines(headers: Sequence[str], rows: Sequence[Sequence[object]]) -> list[str]:
    """Return columns of full width, for output without a terminal; rich is too slow for many rows."""
    lines = [headers, *([_words(value) for value in row] for row in rows)]
    widths = [max(map(_cells, column)) for column in zip(*lines, strict=True)]
    padded = (
        [text + " " * (width - _cells(text)) for text, width in zip(line, widths, strict=True)]
        for line in lines
    )
    return [(" " * COLUMN_GAP).join(line).rstrip() for line in padded]


def _cells(text: str) -> int:
    """Return the width of a text on a terminal."""
    return len(text) if text.isascii() else sum(1 + (east_asian_width(each) in "WF") for each in text)


def print_json(value: Any) -> None:
    print(json.dumps(value, indent=2))


def as_yaml(objects: Sequence[Any]) -> str:
    """Return a document for each object, with multi-line texts as blocks."""
    import yaml

    class Dumper(yaml.SafeDumper):
        pass

    def text(dumper: yaml.SafeDumper, value: str) -> yaml.ScalarNode:
        style = "|" if "\n" in value else None
        return dumper.represent_scalar("tag:yaml.org,2002:str", value, style=style)

    Dumper.add_representer(str, text)
    return yaml.dump_all(objects, Dumper=Dumper, sort_keys=False, width=100, allow_unicode=True)


def table(headers: Sequence[str], rows: Iterable[Sequence[object]], width: int | None = None) -> Table:
    """Return a table; texts that are too wide are folded, or, with `width`, cut to one line.

    The widest columns are folded first, so that the last one, the reason, is never pushed off the screen.
    """
    from rich.table import Table
    from rich.text import Text

    shown = Table(box=None, pad_edge=False, header_style="dim")
    for header in headers[:-1]:
        shown.add_column(header, no_wrap=width is not None, overflow="ellipsis" if width else "fold")
    shown.add_column(headers[-1], overflow="fold")
    texts = [[value if isinstance(value, Text) else cell(value) for value in row] for row in rows]
    if width is not None:
        _cut(headers, texts, width)
    for row in texts:
        shown.add_row(*row)
    return shown


def _cut(headers: Sequence[str], rows: Sequence[Sequence[Text]], width: int) -> None:
    """Cut the last column, and the widest other one if the last would get too narrow."""
    others = [max(len(header), *(row[at].cell_len for row in rows)) for at, header in enumerate(headers[:-1])]
    rest = width - sum(others) - COLUMN_GAP * len(others)
    widest = max(range(len(others)), key=others.__getitem__)
    for row in rows:
        if rest < FEWEST_CHARACTERS:
            row[widest].truncate(max(others[widest] - FEWEST_CHARACTERS + rest, 1), overflow="ellipsis")
        row[-1].truncate(max(rest, FEWEST_CHARACTERS), overflow="ellipsis")


def cell(value: object) -> Text:
    from rich.text import Text

    text = _words(value)
    return Text(text, style=terminal_style(text))


def _words(value: object) -> str:
    return "-" if value is None or value == "" else plain(str(value))
