"""The destination of the agent's own log lines."""

from __future__ import annotations

import logging
import os
import select
import sys
import threading

from agent.signals import deferred
from crds.log_parts import log_parts

WRITE_SECONDS = 10.0
"""Longest wait for the reader of the container's log."""
_ABOVE = f"{(__package__ or '').rpartition('.')[0]}."
"""Where the agent is shipped below another package, that package's name and a dot."""


def log_to_stderr() -> None:
    """Log to stderr at LOGLEVEL, whatever the training image does with the root logger."""
    handler = _Handler()
    handler.addFilter(_short_name)
    handler.setFormatter(logging.Formatter("%(asctime)s %(levelname).1s %(name)s: %(message)s"))
    package = logging.getLogger(__package__)
    package.addHandler(handler)
    package.setLevel(os.environ.get("LOGLEVEL", "INFO").upper())
    package.propagate = False
    threading.excepthook = _log_end_of_thread


class _Handler(logging.StreamHandler):  # type: ignore[type-arg]  # Python 3.10 takes no argument here
    """Defers signals: logging would take their exception for one of the stream, and forget it."""

    def emit(self, record: logging.LogRecord) -> None:
        with deferred():
            super().emit(record)


def write_parts(name: str, data: bytes) -> None:
    """Write data into the container's log, a line at a time, so that no other output gets into one.

    Raises:
        OSError: the log takes no more; TimeoutError among them.
    """
    for line in log_parts(name, data):
        _write_all(sys.stderr.fileno(), f"{line}\n".encode())


def _write_all(descriptor: int, content: bytes) -> None:
    """Write although another program of the container may have set the shared stderr to non-blocking."""
    poll = select.poll()
    poll.register(descriptor, select.POLLOUT)
    while content:
        try:
            content = content[os.write(descriptor, content) :]
        except BlockingIOError:
            if not poll.poll(WRITE_SECONDS * 1000):
                raise TimeoutError(f"the container's log took nothing for {WRITE_SECONDS:.0f} s") from None


def _log_end_of_thread(ended: threading.ExceptHookArgs) -> None:
    """Say that a thread has ended by a defect, which its part of the agent does not survive."""
    if issubclass(ended.exc_type, SystemExit):
        return
    name = ended.thread.name if ended.thread is not None else "unknown"
    logging.getLogger(__name__).error(
        "the thread %s has ended, and the agent goes on without what it did: this is a defect of dlr",
        name,
        exc_info=(ended.exc_type, ended.exc_value or ended.exc_type(), ended.exc_traceback),
    )


def _short_name(record: logging.LogRecord) -> bool:
    record.name = record.name.removeprefix(_ABOVE)
    return True
