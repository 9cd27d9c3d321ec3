"""The page cli-reference.md, from the commands themselves; the build of the site makes it."""

from __future__ import annotations

import inspect
from collections.abc import Iterator
from typing import Any

import typer
from typer.core import TyperGroup

from dlr.commands.application import Commands
from dlr.commands.lazy import LazyGroup

HEAD = """\
# Reference of the dlr command

All commands with their options, as `--help` shows them. [Command line](cli.md) explains them.
"""


def commands(group: type[LazyGroup] = Commands, prefix: str = "dlr") -> Iterator[tuple[str, Any]]:
    """Yield the name of each command, as a person types it, and typer's object."""
    for name, lazy in group.lazy.items():
        command = lazy.load(name)
        if isinstance(command, LazyGroup):
            yield from commands(type(command), f"{prefix} {name}")
            continue
        yield f"{prefix} {name}", command
        if isinstance(command, TyperGroup):
            yield from ((f"{prefix} {name} {each}", it) for each, it in command.commands.items())


def reference() -> str:
    """Return the page."""
    return "\n".join([HEAD, *(_section(name, command) for name, command in commands())])


def _section(name: str, command: Any) -> str:
    context = typer.Context(command, info_name=name)
    usage = " ".join([name, *command.collect_usage_pieces(context)])
    records = (each.get_help_record(context) for each in command.params)
    rows = [f"| `{_cell(what)}` | {_cell(text)} |" for what, text in filter(None, records) if text]
    table = "\n".join(["| | |", "|---|---|", *rows]) + "\n"
    return "\n".join([f"## {name}\n", inspect.cleandoc(command.help or "") + "\n", f"    {usage}\n", table])


def _cell(text: str) -> str:
    return " ".join(text.split()).replace("|", "\\|")
