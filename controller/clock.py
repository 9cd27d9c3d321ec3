"""One clock for all durations: the event loop's, which is monotonic, and which tests may drive."""

from __future__ import annotations

import asyncio
import time


def monotonic() -> float:
    """Seconds, of use for differences only."""
    try:
        return asyncio.get_running_loop().time()
    except RuntimeError:
        return time.monotonic()
