"""Says what a command waits for, once that takes longer than a second.

Only on a terminal, on stderr, in one line that goes when the wait is over; scripts see nothing of it.
"""

from __future__ import annotations

import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager

PATIENCE_SECONDS = 1.0
CLEAR_LINE = "\r\033[K"

_local = threading.local()
"""`busy`: whether a wait of this thread is told already, or is not to be."""


def show_passing(line: str) -> bool:
    """Show a line on a terminal's stderr in the place of the one before; "" takes it away.

    Returns:
        Whether there is a terminal.
    """
    if is_terminal := sys.stderr.isatty():
        print(f"{CLEAR_LINE}{line}", end="", file=sys.stderr, flush=True)
    return is_terminal


@contextmanager
def waiting_for(what: str) -> Iterator[None]:
    """Tell `what` is waited for while the block takes its time. Nothing in it may write to the terminal.

    Args:
        what: such as `the API server at https://…`. Of blocks within each other the outermost is told.
    """
    if getattr(_local, "busy", False) or not sys.stderr.isatty():
        yield
        return
    over = threading.Event()
    teller = threading.Thread(target=_tell, args=(what, over, time.monotonic()), daemon=True)
    _local.busy = True
    teller.start()
    try:
        yield
    finally:
        _local.busy = False
        over.set()
        teller.join()


@contextmanager
def untold() -> Iterator[None]:
    """Tell of no waits: what is shown meanwhile changes by itself."""
    before, _local.busy = getattr(_local, "busy", False), True
    try:
        yield
    finally:
        _local.busy = before


def _tell(what: str, over: threading.Event, begun_at: float) -> None:
    told = False
    while not over.wait(PATIENCE_SECONDS):
        told = True
        seconds = time.monotonic() - begun_at
        show_passing(f"dlr: waiting for {what}, {seconds:.0f} s")
    if told:
        show_passing("")
