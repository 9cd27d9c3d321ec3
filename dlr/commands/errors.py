"""Errors of commands: each is a sentence for the user, with an exit code."""

from __future__ import annotations


class CommandError(Exception):
    """The command failed; the message, printed without a traceback, says why and what to do."""

    exit_code = 1


class CouldNotTell(CommandError):
    """A check was impossible, or had no subject: neither healthy (0) nor faulty (1)."""

    exit_code = 2


class JobFailedError(CommandError):
    """The watched job failed, which scripts see by the exit code."""

    exit_code = 2


class Interrupted(CommandError):
    """Ctrl-C while the cluster works on; the message says on what, and how to see or end it."""

    exit_code = 130
