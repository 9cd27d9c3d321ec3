"""Ctrl-C in the three parts of a command's life: while it is loaded, while it works, and while it ends.

While it is loaded there is nothing to clean up, and the signal ends the process at once (`dlr.cli`). While
it works, it is a KeyboardInterrupt, so that what a command has begun is ended. When it has ended, the
interpreter still removes temporary folders, and a second Ctrl-C is ignored.
"""

from __future__ import annotations

import signal

EXIT_INTERRUPTED = 130
"""What shells make of SIGINT: 128 and its number."""

_is_program = False


def begin_program() -> None:
    """This process is the command's alone, so its signals are ours to handle; but for one that is to be
    ignored, as a shell without a terminal has it for what runs in the background."""
    global _is_program
    _is_program = signal.getsignal(signal.SIGINT) is not signal.SIG_IGN


def raise_from_now_on() -> None:
    """What the command needs is loaded, and it begins to work."""
    if _is_program:
        signal.signal(signal.SIGINT, signal.default_int_handler)


def ignore_from_now_on() -> None:
    if _is_program:
        signal.signal(signal.SIGINT, signal.SIG_IGN)
