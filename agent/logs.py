"""Where the agent's own log lines go."""

from __future__ import annotations

import logging
import os


def log_to_stderr() -> None:
    """At LOGLEVEL, and without a share in what the training image does with its root logger."""
    handler = logging.StreamHandler()
    handler.setFormatter(logging.Formatter("%(asctime)s %(levelname).1s %(name)s: %(message)s"))
    package = logging.getLogger("agent")
    package.addHandler(handler)
    package.setLevel(os.environ.get("LOGLEVEL", "INFO").upper())
    package.propagate = False
