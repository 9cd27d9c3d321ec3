"""The one way a command fails: a sentence for the person at the terminal, and an exit code."""

from __future__ import annotations

from agent.kube.errors import CommandError

__all__ = ["CommandError", "Interrupted", "UsageError"]


class UsageError(CommandError):
    """An option or argument that cannot be meant; nothing has been done."""

    exit_code = 2


class Interrupted(CommandError):
    """Ctrl-C, while something goes on in the cluster: what goes on, and how to see or end it."""

    exit_code = 130
