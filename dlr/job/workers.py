"""The lines of a status that are about workers, one each. Pure."""

from __future__ import annotations

import math
from collections.abc import Sequence
from statistics import median

from controller.wording import counted, first_line
from crds import names
from crds.elasticworker import ExitClass
from dlr.job.case import Case
from dlr.job.failures import by_cause
from dlr.job.report import Row, current_report, ranks, sort_workers, state_of
from dlr.job.wording import EPOCH, duration, parse_time, significant
from dlr.kube.api import JSON

COLUMNS = ("RANK", "POD", "NODE", "STATE", "STEP", "S/STEP", "RESTARTS", "LAST FAILURE")
NARROW_COLUMNS = ("RANK", "POD", "STATE", "STEP", "RESTARTS", "LAST FAILURE")
MOST_NOTES = 5
SLOW_RATIO = 1.25
"""Step time over the median of all, from which on a worker is worth a line."""
AT_EASE = ("Running", "Succeeded", "Standby")
"""States of a worker without trouble."""


def rows(case: Case, workers: Sequence[JSON]) -> list[Row]:
    """Return a row for COLUMNS of each of these workers of a job."""
    rank_of = ranks(case.job)
    return [_row(case, worker, rank_of) for worker in sort_workers(workers)]


def narrow(row: Row) -> Row:
    """Return the row for a narrow terminal, with the number of restarts alone."""
    cells = dict(zip(COLUMNS, row, strict=True))
    cells["RESTARTS"] = str(cells["RESTARTS"]).partition(" ")[0]
    return tuple(cells[column] for column in NARROW_COLUMNS)


def most_telling(job: JSON, workers: Sequence[JSON], most: int) -> list[JSON]:
    """Choose the workers for a screen: those in trouble, those that had some, the slow ones, then by rank."""
    speeds = [speed for worker in workers if (speed := _seconds_per_step(worker))]
    slow = SLOW_RATIO * median(speeds) if speeds else math.inf

    def how_telling(worker: JSON) -> int:
        status = worker.get("status") or {}
        if state_of(worker) not in AT_EASE:
            return 0
        if status.get("restarts") or (status.get("agent") or {}).get("failure"):
            return 1
        return 2 if (_seconds_per_step(worker) or 0.0) > slow else 3

    ordered = sort_workers(workers)
    return ordered if len(ordered) <= most else sort_workers(sorted(ordered, key=how_telling)[:most])


def _seconds_per_step(worker: JSON) -> float | None:
    speed: float | None = (current_report(worker).get("progress") or {}).get("secondsPerStep")
    return speed


def _row(case: Case, worker: JSON, rank_of: dict[int, int]) -> Row:
    spec, status = worker["spec"], worker.get("status") or {}
    progress = current_report(worker).get("progress") or {}
    speed = _seconds_per_step(worker)
    return (
        rank_of.get(spec["index"]) if spec["type"] == names.WORKER else None,
        status.get("podName") or f"{worker['metadata']['name']} (no Pod)",
        status.get("nodeName"),
        state_of(worker),
        progress.get("step"),
        None if speed is None else significant(speed),
        _restarts(status),
        _last_failure(case, worker),
    )


def _last_failure(case: Case, worker: JSON) -> str | None:
    """Describe the end of the worker's Pod, or the failure that it was blamed for, if that was later."""
    found = []
    if blamed := case.failure_of.get(worker["metadata"]["name"]):
        found.append((case.seconds_since(blamed), blamed.what, blamed.text))
    end = (worker.get("status") or {}).get("lastExit") or {}
    if end and end["exitClass"] != ExitClass.SUCCEEDED and not end.get("planned"):
        seconds = (case.now - (parse_time(end["time"]) or EPOCH)).total_seconds()
        found.append((seconds, end["exitClass"], first_line(end.get("message")) or end.get("reason") or ""))
    if not found:
        return None
    seconds, what, text = min(found)
    return f"{what}, {duration(seconds)} ago" + (f": {text}" if text else "")


def _restarts(status: JSON) -> str:
    causes = by_cause(status.get("restarts"))
    total = status.get("restartCount") or sum((status.get("restarts") or {}).values())
    return f"{total} ({causes})" if causes else str(total)


def notes(workers: Sequence[JSON]) -> list[str]:
    """Return messages of workers that do not run, the first few."""
    waiting = [(worker["metadata"]["name"], worker.get("status") or {}) for worker in sort_workers(workers)]
    found = [
        f"{name}: {status['message']}"
        for name, status in waiting
        if status.get("message") and status.get("phase") not in ("Succeeded", "Failed")
    ]
    rest = len(found) - MOST_NOTES
    return (
        found if rest <= 0 else [*found[:MOST_NOTES], f"… and {counted(rest, 'more worker')} with a message"]
    )
