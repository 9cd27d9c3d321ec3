"""Where the agent's own log lines go."""

from __future__ import annotations

import logging
import os

_ABOVE = f"{(__package__ or '').rpartition('.')[0]}."
"""Where the agent is shipped below another package, that package's name and a dot."""


def log_to_stderr() -> None:
    """Log to stderr at LOGLEVEL, whatever the training image does with the root logger."""
    handler = logging.StreamHandler()
    handler.addFilter(_short_name)
    handler.setFormatter(logging.Formatter("%(asctime)s %(levelname).1s %(name)s: %(message)s"))
    package = logging.getLogger(__package__)
    package.addHandler(handler)
    package.setLevel(os.environ.get("LOGLEVEL", "INFO").upper())
    package.propagate = False


def _short_name(record: logging.LogRecord) -> bool:
    record.name = record.name.removeprefix(_ABOVE)
    return True
