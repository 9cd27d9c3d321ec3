"""What a job's status says of failures: the culprit, restarts by cause, the last failure of each worker.

Pure functions of plain objects and `now`.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import Any

from dlr.commands.output import age, parse_time

JSON = dict[str, Any]


def current_report(worker: JSON) -> JSON:
    """What the agent of the current incarnation says; an older one's words count no more."""
    agent: JSON = (worker.get("status") or {}).get("agent") or {}
    return agent if agent.get("incarnation") == worker["spec"].get("incarnation") else {}


def job_failure_line(failure: JSON, now: datetime) -> str:
    """Of `status.lastFailure`: who, why and when, with the first line of what it said."""
    rank = f" rank {failure['rank']}" if failure.get("rank") is not None else ""
    parts = [f"{failure['worker']}{rank}", str(failure["exitClass"])]
    if failure.get("exitCode") is not None:
        parts.append(f"exit code {failure['exitCode']}")
    if failure.get("step") is not None:
        parts.append(f"step {failure['step']}")
    if failure.get("round") is not None:
        parts.append(f"round {failure['round']}")
    parts.append(f"{age(failure['time'], now)} ago")
    said = first_line(failure.get("message"))
    return ", ".join(parts) + (f": {said}" if said else "")


def worker_failure(worker: JSON, now: datetime) -> str | None:
    """How the worker's Pod or processes last failed."""
    status = worker.get("status") or {}
    ended, told = status.get("lastExit") or {}, (status.get("agent") or {}).get("failure") or {}
    if ended.get("exitClass") == "Succeeded":
        ended = {}
    if told and (not ended or _instant(told) > _instant(ended)):
        return _line(
            told.get("cause") or told.get("signal") or f"exit code {told.get('exitCode')}", told, now
        )
    return _line(ended["exitClass"], ended, now) if ended else None


def _line(what: str, failure: JSON, now: datetime) -> str:
    said = first_line(failure.get("message")) or failure.get("reason")
    line = f"{what}, {age(failure['time'], now)} ago"
    return f"{line}: {said}" if said else line


def _instant(failure: JSON) -> float:
    moment = parse_time(failure.get("time"))
    return moment.timestamp() if moment else 0.0


def restarts_line(job: JSON, workers: Sequence[JSON]) -> str:
    """How often processes were started again in place, and Pods replaced, by cause; empty if never."""
    replaced: Counter[str] = Counter()
    for worker in workers:
        replaced.update((worker.get("status") or {}).get("restarts") or {})
    in_place = by_cause((job.get("status") or {}).get("restarts"))
    parts = [("in place: ", in_place), ("new Pods: ", by_cause(replaced))]
    return "; ".join(title + counts for title, counts in parts if counts)


def by_cause(restarts: Mapping[str, int] | None) -> str:
    """Counts by cause, the most frequent first; empty if there are none."""
    counted = sorted((restarts or {}).items(), key=lambda item: (-item[1], item[0]))
    return ", ".join(f"{cause} {count}" for cause, count in counted if count)


def first_line(text: str | None) -> str:
    lines = (text or "").strip().splitlines()
    return lines[0].strip() if lines else ""
