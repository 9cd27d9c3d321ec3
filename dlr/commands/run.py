"""`dlr run` in the list of commands; a call goes to the agent before (`dlr.commands.dispatch`)."""

from __future__ import annotations

from typing import Annotated

import typer


def run(
    arguments: Annotated[
        list[str] | None, typer.Argument(metavar="[TORCHRUN FLAGS] SCRIPT [ARGS]...", show_default=False)
    ] = None,
) -> None:
    """Train, in a Pod: torchrun's flags, a script and its arguments."""
    from agent.launch import main

    raise typer.Exit(main(arguments or []))
