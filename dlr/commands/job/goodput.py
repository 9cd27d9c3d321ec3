"""What a job's time came to, in one line."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime
from typing import Any

JSON = dict[str, Any]


def goodput_line(job: JSON, workers: Sequence[JSON], now: datetime) -> str:
    """The share of effective training time, and what was trained twice; empty before the first step."""
    goodput = (job.get("status") or {}).get("goodput") or {}
    ratio = goodput.get("ratio")
    if ratio is None:
        return ""
    redone = goodput.get("stepsRedone") or 0
    return f"{ratio:.1%} of the time since submission" + (f", {redone} steps trained again" if redone else "")
