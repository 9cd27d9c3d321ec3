"""The commands of a training Pod (`agent.main`), with the parts of the SDK that training processes use."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from agent import main as agent

SDK = agent.Sdk(
    modules=("dlr.checkpoint", "dlr.checkpoint.reading"),
    dlrover_clients=(str(Path(__file__).parent / "as_dlrover"),),
)


def main(words: Sequence[str]) -> int:
    """Run a command as the main program of the injected agent, and return its exit code."""
    return agent.main(words, SDK)


def run_command(words: Sequence[str]) -> int:
    """Run a command, and return its exit code; the caller reports a missing or broken torch."""
    return agent.run_command(words, SDK)
