"""Groups of commands that are imported when they are called.

`dlr --help` imports no command, and `dlr job list` imports one.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, ClassVar

import typer
from typer.core import TyperCommand, TyperGroup
from typer.main import get_command

from dlr.commands import interrupts


@dataclass(frozen=True)
class Lazy:
    """A command that is not imported yet."""

    target: str
    """Path below `dlr.commands` of a function, or of a group, which is a `typer.Typer`."""
    summary: str
    """First line of its help, for the group's list."""
    settings: dict[str, Any] = field(default_factory=dict)
    """Arguments for `typer.Typer.command`."""

    def load(self, name: str) -> Any:
        module, _, function = self.target.rpartition(".")
        found: Callable[..., Any] | typer.Typer
        found = getattr(importlib.import_module(f"dlr.commands.{module}"), function)
        if not isinstance(found, typer.Typer):
            alone = typer.Typer(add_completion=False, context_settings=HELP_NAMES)
            alone.command(name, **self.settings)(found)
            found = alone
        return get_command(found)


HELP_NAMES = {"help_option_names": ["-h", "--help"]}


class LazyGroup(TyperGroup):
    """Base of groups, whose `lazy` names the commands: their list needs no import, a call imports one."""

    lazy: ClassVar[Mapping[str, Lazy]]

    def __init__(self, **attributes: Any) -> None:
        attributes["commands"] = {
            name: TyperCommand(name, help=command.summary) for name, command in self.lazy.items()
        }
        super().__init__(**attributes)

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        """Show the help if no command is given."""
        return super().parse_args(ctx, args or ["--help"])

    def resolve_command(self, ctx: Any, args: list[str]) -> tuple[str | None, Any, list[str]]:
        """Resolve as TyperGroup does, and import the command, for a call or the shell's completion."""
        name, command, rest = super().resolve_command(ctx, args)
        if name is None or command is None:
            return name, command, rest
        loaded = self.lazy[name].load(name)
        if not isinstance(loaded, TyperGroup):
            interrupts.raise_from_now_on()
        return name, loaded, rest
