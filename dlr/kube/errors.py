"""The one way a command fails: a sentence for the person at the terminal, and an exit code."""

from __future__ import annotations


class CommandError(Exception):
    """What was wrong, where, and what to do; printed as it is, without a traceback."""

    exit_code = 1


class UsageError(CommandError):
    """An option or argument that cannot be meant; nothing has been done."""

    exit_code = 2


class Interrupted(CommandError):
    """Ctrl-C, while something goes on in the cluster: what goes on, and how to see or end it."""

    exit_code = 130
