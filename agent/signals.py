"""Signals that end the agent, as exceptions in its main thread: torch's way, but deferrable.

torch's agents raise SignalException wherever the main thread is (torch/distributed/elastic/multiprocessing).
Work that must not be interrupted, such as ending processes, defers it. It is an Exception, so code that
catches any Exception defers it too, or checks `is_of_signal`.
"""

from __future__ import annotations

import contextlib
import os
import signal
import sys
import threading
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:  # `dlr exec` needs no torch
    from torch.distributed.elastic.multiprocessing import SignalException

_names = ""
_deferrals = 0
_pending: int | None = None

ignored = frozenset(
    signum
    for signum in signal.valid_signals() - {signal.SIGPIPE, signal.SIGXFSZ}
    if signal.getsignal(signum) is signal.SIG_IGN
)
"""Signals that were ignored when this program began, except two that Python itself ignores."""

NOTICE = signal.SIGUSR1
"""Signal that Slurm and others send some time before the end. The agent handles it like SIGTERM, so that a
`preStop` hook can send it first. It is not passed on to the training processes."""


def handle(names: str, handler: Any) -> None:
    """Set the handler of signals, as torch does when it starts processes, but from the first moment on.

    Signals that were ignored when this program began stay ignored, for `nohup`.

    Args:
        names: names of the signals, separated by commas, as in `--signals-to-handle`. NOTICE counts as
        SIGTERM
            if it is not among them.
        handler: `raise_signal`, or any handler for `signal.signal`.

    Raises:
        ValueError: there is no signal of that name.
    """
    global _names
    handled = []
    for name in map(str.strip, names.split(",")):
        signum = getattr(signal, name, None)
        if signum is None:
            raise ValueError(f"--signals-to-handle: there is no signal {name!r}")
        if signum not in ignored:
            handled.append(name)
            signal.signal(signum, handler)
    os.environ["TORCHELASTIC_SIGNALS_TO_HANDLE"] = _names = ",".join(handled)
    if NOTICE.name not in names:
        signal.signal(NOTICE, handler)


def take_back() -> None:
    """Restore `raise_signal` as the handler: torch sets its own when it starts processes."""
    if _names:
        handle(_names, raise_signal)


def raise_signal(signum: int, _frame: object) -> None:
    """Raise SignalException, or note it if signals are deferred."""
    global _pending
    if signum == NOTICE and NOTICE.name not in _names:
        signum = signal.SIGTERM
    if _deferrals:
        _pending = signum
    else:
        raise _exception(signum)


@contextlib.contextmanager
def deferred() -> Iterator[None]:
    """Defer the exceptions of signals to the end of the context, if this is the main thread."""
    global _deferrals, _pending
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    _deferrals += 1
    try:
        yield
    finally:
        _deferrals -= 1
        signum = _pending
        if not _deferrals and signum is not None:
            _pending = None
            raise _exception(signum)


def is_of_signal(error: BaseException | None) -> bool:
    """Return whether a signal has raised this, so that the call must not be retried."""
    torch = sys.modules.get("torch.distributed.elastic.multiprocessing")
    return torch is not None and isinstance(error, torch.SignalException)


def _exception(signum: int) -> SignalException:
    from torch.distributed.elastic.multiprocessing import SignalException

    name = signal.Signals(signum)
    return SignalException(f"the agent got {name.name}", sigval=name)
