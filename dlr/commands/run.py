"""`dlr run` and `dlr exec`, for the list of commands; `dlr.commands.dispatch` handles calls earlier."""

from __future__ import annotations

from typing import Annotated

import typer


def run(
    arguments: Annotated[
        list[str] | None, typer.Argument(metavar="[TORCHRUN FLAGS] SCRIPT [ARGS]...", show_default=False)
    ] = None,
) -> None:
    """Train, in a Pod: torchrun's flags, a script and its arguments."""
    from dlr.pod import run_command

    raise typer.Exit(run_command(["run", *(arguments or [])]))


def execute(
    arguments: Annotated[
        list[str] | None, typer.Argument(metavar="[-m] COMMAND [ARGS]...", show_default=False)
    ] = None,
) -> None:
    """Run a command in a Pod, once, whatever the world."""
    from dlr.pod import run_command

    raise typer.Exit(run_command(["exec", *(arguments or [])]))
