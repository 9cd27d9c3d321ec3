"""Clock for all durations: the event loop's, which is monotonic, and which tests can drive."""

from __future__ import annotations

import asyncio
import time


def monotonic() -> float:
    """Return the time in seconds, meaningful only for differences."""
    try:
        return asyncio.get_running_loop().time()
    except RuntimeError:
        return time.monotonic()
