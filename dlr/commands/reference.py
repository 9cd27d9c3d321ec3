"""docs/cli-reference.md, from the commands themselves: `python -m dlr.commands.reference` writes it."""

from __future__ import annotations

import inspect
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import typer
from typer.core import TyperGroup

from dlr.commands.application import Commands
from dlr.commands.lazy import Lazy, LazyGroup

FILE = Path(__file__).parents[2] / "docs" / "cli-reference.md"
HEAD = """\
# Reference of the dlr command

Generated from the commands by `python -m dlr.commands.reference`; do not edit. [cli.md](cli.md) explains
them. `--context`, `--kubeconfig` and `-n` may also stand in front of a command, as in
`dlr -n team-a job list`.
"""


def commands(lazy: Mapping[str, Lazy] = Commands.lazy, prefix: str = "dlr") -> Iterator[tuple[str, Any]]:
    """Yield (name, typer's command) of all, each name as a person types it."""
    for name, each in lazy.items():
        full, command = f"{prefix} {name}", each.load(name)
        if isinstance(command, LazyGroup):
            yield from commands(command.lazy, full)
            continue
        yield full, command
        if isinstance(command, TyperGroup):
            yield from ((f"{full} {below}", found) for below, found in command.commands.items())


def reference() -> str:
    """Return the page."""
    return "\n".join([HEAD, *(_section(name, command) for name, command in commands())])


def _section(name: str, command: Any) -> str:
    context = typer.Context(command, info_name=name, terminal_width=1_000)
    usage = " ".join([name, *command.collect_usage_pieces(context)])
    parts = [f"## {name}\n", inspect.cleandoc(command.help or "") + "\n", f"    {usage}\n"]
    records = [each.get_help_record(context) for each in command.get_params(context) if each.name != "help"]
    if rows := [f"| `{_cell(usage)}` | {_cell(text)} |" for usage, text in filter(None, records)]:
        parts.append("\n".join(["| | |", "|---|---|", *rows]) + "\n")
    return "\n".join(parts)


def _cell(text: str) -> str:
    return " ".join(text.split()).replace("|", "\\|")


if __name__ == "__main__":
    FILE.write_text(reference())
