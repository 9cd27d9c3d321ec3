"""What `dlr job stacks` has found last, on a job's page, which asks nothing by itself. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from crds import names
from dlr.job.merged_stacks import merge, stack_lines
from dlr.job.report import is_finished
from dlr.job.stacks import asked_at, read

JSON = dict[str, Any]

MOST_LINES = 120
MOST_CHARACTERS = 300


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
    asked, moment = read(request, workers), asked_at(request)
    lines = stack_lines(merge(asked.stacks), asked.where)
    return {
        "asked": None if moment is None else moment.timestamp(),
        "processes": len(asked.stacks),
        "lines": [line[:MOST_CHARACTERS] for line in lines[:MOST_LINES]],
        "leftOut": max(0, len(lines) - MOST_LINES),
        "silent": len(asked.silent),
    }
