"""What a job's time came to, in one line."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime
from typing import Any

JSON = dict[str, Any]


def goodput_ratio(job: JSON, workers: Sequence[JSON], now: datetime) -> float | None:
    """The share of effective training time; None before the first step."""
    ratio: float | None = ((job.get("status") or {}).get("goodput") or {}).get("ratio")
    return ratio


def goodput_line(job: JSON, workers: Sequence[JSON], now: datetime) -> str:
    """The ratio, and what was trained twice; empty before the first step."""
    ratio = goodput_ratio(job, workers, now)
    if ratio is None:
        return ""
    redone = job["status"]["goodput"].get("stepsRedone") or 0
    return f"{ratio:.1%} of the time since submission" + (f", {redone} steps trained again" if redone else "")
