"""What `dlr job stacks` has found last, on a job's page, which asks nothing by itself. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from typing import Any

from crds import names
from dlr.commands.job.merged_stacks import merge, stack_lines
from dlr.commands.job.report import is_finished
from dlr.commands.job.stacks import read
from dlr.commands.output import parse_time

JSON = dict[str, Any]

MOST_LINES = 120
MOST_CHARACTERS = 300
TIME_CHARACTERS = len("2026-01-01T00:00:00Z")
"""With these a request begins."""


def last_stacks(job: JSON, workers: Sequence[JSON]) -> JSON | None:
    """The answers to the last request, equal stacks once and the odd ones first.

    Returns:
        None for a job that has ended. `processes` is 0 where nobody has asked, or none has answered yet.
    """
    if is_finished(job):
        return None
    request = str(job["metadata"].get("annotations", {}).get(names.ANNOTATION_STACKS, ""))
    if not request:
        return {"asked": None, "processes": 0, "lines": [], "leftOut": 0, "silent": 0}
    asked = read(request, workers)
    lines = stack_lines(merge(asked.stacks), asked.where)
    return {
        "asked": _asked_at(request),
        "processes": len(asked.stacks),
        "lines": [line[:MOST_CHARACTERS] for line in lines[:MOST_LINES]],
        "leftOut": max(0, len(lines) - MOST_LINES),
        "silent": len(asked.silent),
    }


def _asked_at(request: str) -> float | None:
    """In seconds since the epoch; None where somebody has written a request of his own."""
    with suppress(ValueError):
        moment = parse_time(request[:TIME_CHARACTERS])
        return None if moment is None else moment.timestamp()
    return None
