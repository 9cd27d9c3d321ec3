"""The destination of the agent's own log lines."""

from __future__ import annotations

import logging
import os
import threading

from agent.signals import deferred

_ABOVE = f"{(__package__ or '').rpartition('.')[0]}."
"""Name of the package that includes the agent, with a dot; empty if there is none."""


def log_to_stderr() -> None:
    """Log to stderr at LOGLEVEL, independently of the root logger, which the training image may configure."""
    handler = _Handler()
    handler.addFilter(_short_name)
    handler.setFormatter(logging.Formatter("%(asctime)s %(levelname).1s %(name)s: %(message)s"))
    package = logging.getLogger(__package__)
    package.addHandler(handler)
    package.setLevel(os.environ.get("LOGLEVEL", "INFO").upper())
    package.propagate = False
    threading.excepthook = _log_end_of_thread


class _Handler(logging.StreamHandler):  # type: ignore[type-arg]  # Python 3.10 takes no argument here
    """Defers signals, whose exceptions logging would take for errors of the stream, and drop."""

    def emit(self, record: logging.LogRecord) -> None:
        with deferred():
            super().emit(record)


def _log_end_of_thread(ended: threading.ExceptHookArgs) -> None:
    """Log that a thread has ended by a defect."""
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
