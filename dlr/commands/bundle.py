"""`dlr bundle`: the agent for injection into training images."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from crds.names import AGENT_ZIP
from dlr.commands.errors import CommandError
from dlr.commands.options import not_empty


def bundle(
    folder: Annotated[
        str,
        typer.Argument(
            callback=not_empty, help="Folder to write to; created if missing.", show_default=False
        ),
    ],
) -> None:
    """Write the agent that is injected into training images."""
    from dlr.bundle import agent

    try:
        sha256 = agent.build(Path(folder))
    except OSError as error:
        raise CommandError(f"The agent cannot be written to {folder}: {error.strerror}.") from error
    print(f"{AGENT_ZIP}: SHA-256 {sha256}")
    print(f"The agent is in {folder}; --agent-path of the controller names the folder in its image.")
