"""How things are shown: tables for people, JSON for programs.

On a terminal tables fit its width and have colours. Anywhere else they are plain columns of full width, one
line an entry, so that grep and awk work on them. What a cluster's objects say is shown as text, never
obeyed: neither as rich's markup nor as a terminal's control sequences.

rich takes as long to import as a short command needs for all the rest, so it is imported where it draws.
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
"""Lines of commands that run until they are stopped."""
UNLIMITED_WIDTH = 10_000
UNKNOWN_SIZE = (80, 24)
NARROW_WIDTH = 120
"""On a terminal that is no wider, the longest text has the room of columns that can be done without."""
COLUMN_GAP = 2
FEWEST_CHARACTERS = 12
"""A text shorter than that says nothing; where so many have no room, other columns are cut too."""


class Format(StrEnum):
    TABLE = "table"
    JSON = "json"


def is_narrow() -> bool:
    """Whether stdout is a terminal without room for all columns."""
    return sys.stdout.isatty() and console().width <= NARROW_WIDTH


def console() -> Console:
    """Return a console for the present stdout: tests and pipes put another file in place of it."""
    from rich.console import Console

    if sys.stdout.isatty():
        found = Console(highlight=False)
        if 0 in found.size:  # COLUMNS=0, of a terminal whose size is not known
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
        word: a word that has a tone.
    """
    from rich.text import Text

    mark = ("● ", terminal_style(word)) if sys.stdout.isatty() else ""
    return Text.assemble(mark, (plain(text), "bold"))


def show_table(headers: Sequence[str], rows: Sequence[Sequence[object]], *, one_line: bool = False) -> None:
    """Print a table, with nothing beside it.

    Args:
        one_line: cut each row to one line of a terminal.
    """
    if sys.stdout.isatty():
        show(table(headers, rows, console().width if one_line else None))
        return
    print("\n".join(plain_lines(headers, rows)))


def plain_lines(headers: Sequence[str], rows: Sequence[Sequence[object]]) -> list[str]:
    """Return columns of full width, for where there is no terminal: rich is too slow for ten thousand."""
    lines = [headers, *([_words(value) for value in row] for row in rows)]
    widths = [max(map(_cells, column)) for column in zip(*lines, strict=True)]
    padded = (
        [text + " " * (width - _cells(text)) for text, width in zip(line, widths, strict=True)]
        for line in lines
    )
    return [(" " * COLUMN_GAP).join(line).rstrip() for line in padded]


def _cells(text: str) -> int:
    """How wide it is on a terminal."""
    return len(text) if text.isascii() else sum(1 + (east_asian_width(each) in "WF") for each in text)


def print_json(value: Any) -> None:
    print(json.dumps(value, indent=2))


def as_yaml(objects: Sequence[Any]) -> str:
    """Return a document for each object, with texts of several lines as they are."""
    import yaml

    class Dumper(yaml.SafeDumper):
        pass

    def text(dumper: yaml.SafeDumper, value: str) -> yaml.ScalarNode:
        style = "|" if "\n" in value else None
        return dumper.represent_scalar("tag:yaml.org,2002:str", value, style=style)

    Dumper.add_representer(str, text)
    return yaml.dump_all(objects, Dumper=Dumper, sort_keys=False, width=100, allow_unicode=True)


def table(headers: Sequence[str], rows: Iterable[Sequence[object]], width: int | None = None) -> Table:
    """Return columns; what is too wide for the terminal is folded, or cut to lines of `width`.

    The widest columns are folded first, so that the last one, which says why, is never pushed off the screen.
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
    """The last column, and the widest other where the last would have no room to say anything."""
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
