"""A job's failures in its status: the culprit, restarts by cause, the last failure of each worker.

Pure functions of plain objects and `now`.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from functools import lru_cache
from typing import Any

from controller.wording import first_line
from crds.agent_report import AgentFailure, FailureCause
from crds.elasticworker import ExitClass
from dlr.job.wording import EPOCH, age, duration, parse_time
from reconcilers.observed.exit_class import classify_process

JSON = dict[str, Any]

FOLLOWED = "after a peer"
"""What is said instead of a class where a process died of another's death."""
WAITED = "waited for a peer"
"""What is said instead of a class where a process hung because another did."""
MOST_JUDGED = 2_048
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
        failure = AgentFailure(
            sequence=1,
            round=0,
            cause=FailureCause(cause) if cause else None,
            exit_code=exit_code,
            message=message or "",
            log_tail=log_tail or "",
            time=EPOCH,
        )
        return classify_process(failure).value
    except ValueError:
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


@dataclass(frozen=True)
class Culprit:
    failure: JSON
    """`status.lastFailure` of the job."""
    incarnation: int | None
    """The worker's incarnation when it failed; None if the worker is gone."""
    node: str
    stacks: Sequence[JSON]
    """The `RankStack`s of a hang, from all workers that reported any in that round."""
    kept_log: str
    """The end of the failed process's log, as status keeps it."""

    @property
    def worker(self) -> str:
        return str(self.failure["worker"])

    @property
    def pod(self) -> str | None:
        return None if self.incarnation is None else f"{self.worker}-{self.incarnation}"

    @property
    def time(self) -> datetime:
        return parse_time(self.failure["time"]) or EPOCH


def find_culprit(job: JSON, workers: Sequence[JSON]) -> Culprit | None:
    """None if nothing has failed."""
    failure = (job.get("status") or {}).get("lastFailure")
    if not failure:
        return None
    worker = next((each for each in workers if each["metadata"]["name"] == failure["worker"]), None)
    if worker is None:
        return Culprit(failure, None, "", (), "")
    stacks = _stacks_in(failure.get("round"), workers)
    status = worker.get("status") or {}
    agent = status.get("agent") or {}
    told = agent.get("failure") or {}
    told = told if _is_told(told, failure) else {}
    ended = status.get("lastExit") or {}
    ended = ended if _is_end(ended, failure) else {}
    life = _life_at(status.get("history") or (), parse_time(failure["time"]) or EPOCH)
    if told:
        incarnation = agent.get("incarnation")
    else:
        incarnation = ended.get("incarnation") or life.get("incarnation") or worker["spec"].get("incarnation")
    node = ended.get("nodeName") or life.get("nodeName")
    if not node and incarnation == worker["spec"].get("incarnation"):
        node = status.get("nodeName")
    log = told.get("logTail") or ended.get("logTail") or ""
    return Culprit(failure, incarnation, node or "", stacks, log)


def _stacks_in(round_: int | None, workers: Sequence[JSON]) -> list[JSON]:
    told = [((worker.get("status") or {}).get("agent") or {}).get("failure") or {} for worker in workers]
    return [
        stack
        for failure in told
        if round_ is not None and failure.get("round") == round_
        for stack in failure.get("stacks") or ()
    ]


def _is_told(told: Mapping[str, Any], failure: Mapping[str, Any]) -> bool:
    """The agent's last failure is the job's: it has stayed the last one of that worker."""
    if not told:
        return False
    if failure.get("round") is not None and told.get("round") != failure["round"]:
        return False
    return _are_near(told, failure) and told.get("rank") == failure.get("rank", told.get("rank"))


def _is_end(ended: Mapping[str, Any], failure: Mapping[str, Any]) -> bool:
    return bool(ended) and ended.get("exitClass") == failure.get("exitClass") and _are_near(ended, failure)


def _are_near(one: Mapping[str, Any], other: Mapping[str, Any]) -> bool:
    first, second = parse_time(one.get("time")), parse_time(other.get("time"))
    return first is not None and second is not None and abs(first - second) <= SAME_MOMENT


def _life_at(lives: Sequence[JSON], moment: datetime) -> JSON:
    """The newest incarnation that had begun by then; an empty one if history does not reach so far back."""
    begun = [life for life in lives if datetime.fromisoformat(life["createdAt"]) <= moment]
    return begun[-1] if begun else {}


def heading(culprit: Culprit, now: datetime) -> list[tuple[str, str]]:
    """(label, text): who, when, what class; the text may have several lines."""
    failure = culprit.failure
    rank = f", rank {failure['rank']}" if failure.get("rank") is not None else ""
    pod = f", Pod {culprit.pod}" if culprit.pod else ", which is no worker of the job any more"
    where = f" on {culprit.node}" if culprit.node else ""
    when = [f"{culprit.time:%Y-%m-%d %H:%M:%S %Z}", f"{age(failure['time'], now)} ago"]
    when += [f"{each} {failure[each]}" for each in ("round", "step") if failure.get(each) is not None]
    code = failure.get("exitCode")
    message = str(failure.get("message") or "(nothing was said)")
    return [
        ("Worker", f"{culprit.worker}{rank}{pod}{where}"),
        ("Failed", ", ".join(when)),
        ("Class", f"{failure['exitClass']}" + (f", exit code {code}" if code is not None else "")),
        ("Error", first_line(message) if culprit.stacks else message),  # the stacks are shown beside it
    ]
