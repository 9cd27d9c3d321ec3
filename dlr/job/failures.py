"""What a job's status says of failures: the culprit, restarts by cause, the last failure of each worker.

Pure functions of plain objects and `now`.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from functools import lru_cache
from typing import Any

from pydantic import ValidationError

from controller.wording import first_line
from crds.agent_report import AgentFailure
from crds.elasticworker import ExitClass
from dlr.job.wording import (
    EPOCH,
    age,
    duration,
    parse_time,
)
from reconcilers.observed.exit_class import classify_process

JSON = dict[str, Any]

FOLLOWED = "after a peer"
"""What is said instead of a class where a process died of another's death."""
WAITED = "waited for a peer"
"""What is said instead of a class where a process hung because another did."""
MOST_JUDGED = 2_048
NOT_JUDGED: JSON = {"sequence": 1, "round": 0, "time": EPOCH}
"""What a failure's account must have besides, and its class does not depend on."""
SAME_MOMENT = timedelta(seconds=5)
"""Agent's and controller's accounts of one failure lie no further apart."""


def job_failure_line(failure: JSON, now: datetime) -> str:
    """Describe `status.lastFailure`: worker, class and time, with the first line of its message."""
    rank = f" rank {failure['rank']}" if failure.get("rank") is not None else ""
    parts = [f"{failure['worker']}{rank}", str(failure["exitClass"])]
    if failure.get("exitCode") is not None:
        parts.append(f"exit code {failure['exitCode']}")
    if failure.get("step") is not None:
        parts.append(f"step {failure['step']}")
    if failure.get("round") is not None:
        parts.append(f"round {failure['round']}")
    parts.append(f"{age(failure['time'], now)} ago")
    said = first_line(failure.get("message")).removeprefix(f"exit code {failure.get('exitCode')}: ")
    return ", ".join(parts) + (f": {said}" if said else "")


def worker_failure(worker: JSON, now: datetime, blamed: JSON | None = None) -> str | None:
    """How the worker's Pod or processes last failed, in a line; a loss of its own counts for more.

    Args:
        blamed: `status.lastFailure` of the job: whoever else hung in its round waited.
    """
    told = [_judged(failure, worker, blamed or {}) for failure in worker_failures(worker)]
    if not told:
        return None
    judged, newest = told[0], told[-1]
    last = newest if newest.time - judged.time > SAME_MOMENT else judged
    line = f"{last.what}, {duration((now - last.time).total_seconds())} ago"
    return f"{line}: {last.said}" if last.said and not last.follows else line


@dataclass(frozen=True)
class WorkerFailure:
    time: datetime
    what: str
    """The class, or what is known before it is judged."""
    said: str
    round: int | None = None
    """The round of a process that failed in place."""
    follows: bool = False
    """Whether its message shows that it failed because a peer had."""
    waited: bool = False
    """It hung, and all of its processes waited for other ranks."""


def _judged(failure: WorkerFailure, worker: JSON, blamed: JSON) -> WorkerFailure:
    is_peer = failure.round == blamed.get("round") and worker["metadata"]["name"] != blamed.get("worker")
    if failure.what != ExitClass.HANG or failure.round is None or not is_peer:
        return failure
    return replace(failure, what=WAITED, follows=True)


def failures_told(worker: JSON) -> tuple[JSON, JSON]:
    """What is told of the last failure that ended a Pod, and of the last one in place; {} where none did."""
    status = worker.get("status") or {}
    ended, told = status.get("lastExit") or {}, (status.get("agent") or {}).get("failure") or {}
    return ended if ended.get("exitClass") != ExitClass.SUCCEEDED else {}, told


def worker_failures(worker: JSON) -> list[WorkerFailure]:
    """The last one that ended a Pod, and the last one in place; perhaps they are the same."""
    ended, told = failures_told(worker)
    found = []
    if ended:
        found.append(WorkerFailure(_time(ended), ended["exitClass"], _said(ended)))
    if told:
        found.append(_in_place(told))
    return found


def _in_place(told: JSON) -> WorkerFailure:
    account = (told.get(field) for field in ("cause", "exitCode", "message", "logTail"))
    what = _class_of(*account) or told.get("signal") or f"exit code {told.get('exitCode')}"
    follows = what == ExitClass.UNKNOWN
    shown = FOLLOWED if follows else what
    stacks = told.get("stacks") or ()
    waited = what == ExitClass.HANG and bool(stacks) and all(stack.get("inCollective") for stack in stacks)
    return WorkerFailure(_time(told), shown, _said(told), told.get("round"), follows, waited)


@lru_cache(maxsize=MOST_JUDGED)
def _class_of(
    cause: str | None, exit_code: int | None, message: str | None, log_tail: str | None
) -> str | None:
    """Judged as the controller does; what a later version told that this one cannot judge, by its own word.

    A dashboard asks every second of the same failures, and a text of some KB takes 50 µs.
    """
    try:
        told = {"cause": cause, "exitCode": exit_code, "message": message or "", "logTail": log_tail or ""}
        return classify_process(AgentFailure.model_validate(told | NOT_JUDGED)).value
    except ValidationError:
        return cause


def _time(failure: JSON) -> datetime:
    return parse_time(failure["time"]) or EPOCH


def _said(failure: JSON) -> str:
    return first_line(failure.get("message")) or failure.get("reason") or ""


def failures_line(job: JSON, workers: Sequence[JSON]) -> str:
    """How often a world broke by its processes, and how many Pods ended, by cause; empty if never.

    A failure of both is in both: of a process that gets a new Pod, and of a Pod that takes its world along.
    """
    broken, pods = broken_worlds(job), ended_pods(job, workers)
    parts = [("of processes: ", by_cause(broken)), ("of Pods: ", by_cause(pods))]
    return "; ".join(title + counts for title, counts in parts if counts)


def broken_worlds(job: JSON) -> Mapping[str, int]:
    """Return how often a process's failure ended a round, by exit class."""
    return (job.get("status") or {}).get("restarts") or {}


def ended_pods(job: JSON, workers: Sequence[JSON]) -> Mapping[str, int]:
    """Return the ended Pods of all workers, present and past, by exit class."""
    pods: Counter[str] = Counter(((job.get("status") or {}).get("departed") or {}).get("restarts") or {})
    for worker in workers:
        if restarts := (worker.get("status") or {}).get("restarts"):
            pods.update(restarts)
    return pods


def by_cause(restarts: Mapping[str, int] | None) -> str:
    """Counts by cause, the most frequent first; empty if there are none."""
    counted = sorted((restarts or {}).items(), key=lambda item: (-item[1], item[0]))
    return ", ".join(f"{cause} {count}" for cause, count in counted if count)
