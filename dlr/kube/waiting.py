"""Shows what a command waits for, if that takes longer than a second.

It is shown only on a terminal, on stderr, in one line that disappears after the wait.
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
"""`busy`: whether another wait of this thread is shown already, or waits must not be shown."""


def show_passing(line: str) -> bool:
    """Show a line on a terminal's stderr in place of the previous one; "" removes it.

    Returns:
        whether there is a terminal.
    """
    if is_terminal := sys.stderr.isatty():
        print(f"{CLEAR_LINE}{line}", end="", file=sys.stderr, flush=True)
    return is_terminal


@contextmanager
def waiting_for(what: str) -> Iterator[None]:
    """Show `what` the block waits for. The block must not write to the terminal.

    Args:
        what: such as `the API server at https://…`. Of nested blocks only the outermost is shown.
    """
    if getattr(_local, "busy", False) or not sys.stderr.isatty():
        yield
        return
    over = threading.Event()
    display = threading.Thread(target=_show, args=(what, over, time.monotonic()), daemon=True)
    _local.busy = True
    display.start()
    try:
        yield
    finally:
        _local.busy = False
        over.set()
        display.join()


@contextmanager
def without_display() -> Iterator[None]:
    """Show no waits in the block, whose caller has a changing display of its own."""
    before, _local.busy = getattr(_local, "busy", False), True
    try:
        yield
    finally:
        _local.busy = before


def _show(what: str, over: threading.Event, begun_at: float) -> None:
    is_shown = False
    while not over.wait(PATIENCE_SECONDS):
        is_shown = True
        seconds = time.monotonic() - begun_at
        show_passing(f"dlr: waiting for {what}, {seconds:.0f} s")
    if is_shown:
        show_passing("")
