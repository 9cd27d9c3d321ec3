"""Ctrl-C in the three parts of a command's life: while it is loaded, while it works, and while it ends.

While it is loaded there is nothing to clean up, and the signal ends the process at once (`dlr.cli`). While
it works, it is a KeyboardInterrupt, so that what a command has begun is ended. When it has ended, the
interpreter still removes temporary folders, and a second Ctrl-C is ignored.
"""

from __future__ import annotations

import _thread
import signal
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType

EXIT_INTERRUPTED = 130
"""What shells make of SIGINT: 128 and its number."""

FINALIZER_SECONDS = 0.02

_is_program = False
_was_interrupted = False


def begin_program() -> None:
    """This process is the command's alone, so its signals are ours to handle; but for one that is to be
    ignored, as a shell without a terminal has it for what runs in the background."""
    global _is_program
    _is_program = signal.getsignal(signal.SIGINT) is not signal.SIG_IGN


def raise_from_now_on() -> None:
    """What the command needs is loaded, and it begins to work."""
    if _is_program:
        sys.unraisablehook = _interrupt_again
        signal.signal(signal.SIGINT, _interrupt)


def default_from_now_on() -> None:
    """Give signals their default handlers back."""
    if _is_program:
        signal.signal(signal.SIGINT, signal.default_int_handler)


def ignore_from_now_on() -> None:
    if _is_program:
        signal.signal(signal.SIGINT, signal.SIG_IGN)


@contextmanager
def deferred() -> Iterator[None]:
    """What is in hand is brought to its end first: a Ctrl-C or SIGTERM meanwhile is as if it came then."""
    came: list[int] = []
    handlers = {signum: signal.getsignal(signum) for signum in (signal.SIGINT, signal.SIGTERM)}
    deferred = {signum: handler for signum, handler in handlers.items() if callable(handler)}
    try:
        for signum in deferred:
            signal.signal(signum, lambda number, _frame: came.append(number))
        yield
    finally:
        for signum, handler in deferred.items():
            signal.signal(signum, handler)
        for number in came[:1]:
            signal.raise_signal(number)


def was_interrupted() -> bool:
    """Whether Ctrl-C was pressed, also where a library has made another exception of it."""
    return _was_interrupted


def _interrupt(_signum: int, frame: FrameType | None) -> None:
    global _was_interrupted
    _was_interrupted = True
    while frame is not None:
        if frame.f_code is _interrupt_again.__code__:  # it would be lost there, as in the finalizer
            _thread.start_new_thread(_interrupt_soon, ())
            return
        frame = frame.f_back
    raise KeyboardInterrupt


def _interrupt_soon() -> None:
    """When the finalizer has returned. As a signal: the main thread may wait for something by then."""
    time.sleep(FINALIZER_SECONDS)
    signal.pthread_kill(threading.main_thread().ident or 0, signal.SIGINT)


def _interrupt_again(unraisable: sys.UnraisableHookArgs) -> None:
    """An interrupt that met a finalizer, which cannot raise, comes again; other exceptions are shown."""
    if isinstance(unraisable.exc_value, KeyboardInterrupt):
        _thread.start_new_thread(_interrupt_soon, ())
    else:
        sys.__unraisablehook__(unraisable)
