"""What a job's status says of failures: the culprit, restarts by cause, the last failure of each worker.

Pure functions of plain objects and `now`.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any

from dlr.commands.output import age, duration

JSON = dict[str, Any]

SAME_MOMENT = timedelta(seconds=5)
"""Agent's and controller's accounts of one failure lie no further apart."""


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
    """How the worker's Pod or processes last failed, in a line."""
    told = worker_failures(worker)
    if not told:
        return None
    judged, newest = told[0], told[-1]
    last = newest if newest.time - judged.time > SAME_MOMENT else judged
    line = f"{last.what}, {duration((now - last.time).total_seconds())} ago"
    return f"{line}: {last.said}" if last.said else line


@dataclass(frozen=True)
class WorkerFailure:
    time: datetime
    what: str
    """The class, or what the agent knows before the controller has judged."""
    said: str


def worker_failures(worker: JSON) -> list[WorkerFailure]:
    """The last one that the controller judged, and the last one that the agent told; often the same."""
    status = worker.get("status") or {}
    ended, told = status.get("lastExit") or {}, (status.get("agent") or {}).get("failure") or {}
    found = []
    if ended and ended["exitClass"] != "Succeeded":
        found.append(_worker_failure(ended["exitClass"], ended))
    if told:
        what = told.get("cause") or told.get("signal") or f"exit code {told.get('exitCode')}"
        found.append(_worker_failure(what, told))
    return found


def _worker_failure(what: str, failure: JSON) -> WorkerFailure:
    said = first_line(failure.get("message")) or failure.get("reason") or ""
    return WorkerFailure(datetime.fromisoformat(failure["time"]), what, said)


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
