"""Ctrl-C in the three parts of a command's life: while it is loaded, while it runs, and while it ends.

While it is loaded there is nothing to clean up, and the signal ends the process at once (`dlr.cli`). While
it runs, the signal raises KeyboardInterrupt, so that the command can clean up. After its end, while the
interpreter removes temporary folders, a second Ctrl-C is ignored.
"""

from __future__ import annotations

import signal

EXIT_INTERRUPTED = 130
"""Exit code after SIGINT in shells: 128 and its number."""

_is_program = False


def begin_program() -> None:
    """Handle this process's SIGINT from now on, unless it is ignored, as a shell does for jobs in the
    background."""
    global _is_program
    _is_program = signal.getsignal(signal.SIGINT) is not signal.SIG_IGN


def raise_from_now_on() -> None:
    """Raise KeyboardInterrupt for SIGINT: the command is loaded, and begins to run."""
    if _is_program:
        signal.signal(signal.SIGINT, signal.default_int_handler)


def ignore_from_now_on() -> None:
    if _is_program:
        signal.signal(signal.SIGINT, signal.SIG_IGN)
