"""The ways a command fails: a sentence for the person at the terminal, and an exit code."""

from __future__ import annotations


class CommandError(Exception):
    """What was wrong, where, and what to do; printed as it is, without a traceback."""

    exit_code = 1


class CouldNotTell(CommandError):
    """There is nothing to check, or no way to: neither healthy (0) nor faulty (1)."""

    exit_code = 2


class JobFailedError(CommandError):
    """The watched job ended, and not well: scripts see it by the exit code."""

    exit_code = 2


class Interrupted(CommandError):
    """Ctrl-C, while something goes on in the cluster: what goes on, and how to see or end it."""

    exit_code = 130
