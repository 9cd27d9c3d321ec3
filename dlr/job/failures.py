"""A job's failures in its status: the culprit, restarts by cause, the last failures of each worker. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from functools import lru_cache

from controller.wording import first_line
from crds.agent_report import AgentFailure, FailureCause
from crds.elasticworker import ExitClass
from dlr.job.wording import EPOCH, age, duration, parse_time
from dlr.kube.api import JSON
from reconcilers.failure.incidents import switch_words
from reconcilers.observed.exit_class import classify_process

FOLLOWED = "after a peer"
"""The word for the class of a process that died because a peer had."""
WAITED = "waited for a peer"
"""The word for the class of a process that hung because a peer did."""
MOST_JUDGED = 2_048
SAME_MOMENT = timedelta(seconds=5)
"""Accounts of one failure that name no round lie no further apart."""


def job_failure_line(failure: JSON, now: datetime) -> str:
    """Describe `status.lastFailure`: worker, class and time, with the first line of its message."""
    rank = f" rank {failure['rank']}" if failure.get("rank") is not None else ""
    if failure["exitClass"] == ExitClass.UNKNOWN:
        return (
            f"a peer's, which is not known; {failure['worker']}{rank} lost it {age(failure['time'], now)} ago"
        )
    parts = [f"{failure['worker']}{rank}", str(failure["exitClass"])]
    for key, label in (("exitCode", "exit code"), ("step", "step"), ("round", "round")):
        if failure.get(key) is not None:
            parts.append(f"{label} {failure[key]}")
    parts.append(f"{age(failure['time'], now)} ago")
    text = first_line(failure.get("message")).removeprefix(f"exit code {failure.get('exitCode')}: ")
    return switch_words(failure.get("domain")) + ", ".join(parts) + (f": {text}" if text else "")


@dataclass(frozen=True)
class WorkerFailure:
    """A failure in a worker's status."""

    time: datetime
    what: str
    """The class, or a few words where it has none."""
    text: str
    """The first line of its message."""
    round: int | None = None
    """The round of a process that failed in place."""
    follows: bool = False
    """Whether its message shows that it failed because a peer had."""
    waited: bool = False
    """Whether it hung while all of its processes waited for other ranks."""


def worker_failures(worker: JSON) -> list[WorkerFailure]:
    """Return the last failure that ended a Pod, and the last one in place; perhaps they are the same."""
    status = worker.get("status") or {}
    ended, failure = status.get("lastExit") or {}, (status.get("agent") or {}).get("failure") or {}
    found = []
    if ended and ended.get("exitClass") != ExitClass.SUCCEEDED and not ended.get("planned"):
        found.append(WorkerFailure(_time(ended), ended["exitClass"], _text(ended)))
    if failure:
        found.append(_in_place(failure))
    return found


def _in_place(failure: JSON) -> WorkerFailure:
    account = (failure.get(field) for field in ("cause", "exitCode", "message", "logTail"))
    what = _class_of(*account) or failure.get("signal") or f"exit code {failure.get('exitCode')}"
    follows = what == ExitClass.UNKNOWN
    stacks = failure.get("stacks") or ()
    waited = what == ExitClass.HANG and bool(stacks) and all(stack.get("inCollective") for stack in stacks)
    shown = FOLLOWED if follows else what
    return WorkerFailure(_time(failure), shown, _text(failure), failure.get("round"), follows, waited)


@lru_cache(maxsize=MOST_JUDGED)
def _class_of(
    cause: str | None, exit_code: int | None, message: str | None, log_tail: str | None
) -> str | None:
    """Return the controller's class; the cause itself where this version cannot judge a later one's.

    Kept, since a dashboard needs those of the same failures every second, and a text of some KB takes 50 µs.
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


def _text(failure: JSON) -> str:
    return first_line(failure.get("message")) or failure.get("reason") or ""


def worker_failure(worker: JSON, now: datetime, blamed: JSON | None = None) -> str | None:
    """Describe in a line how the worker last failed; the loss of its Pod counts for more.

    Args:
        blamed: `status.lastFailure` of the job: the others that hung in its round waited.
    """
    found = [_judged(failure, worker, blamed or {}) for failure in worker_failures(worker)]
    if not found:
        return None
    last = found[-1] if found[-1].time - found[0].time > SAME_MOMENT else found[0]
    line = f"{last.what}, {duration((now - last.time).total_seconds())} ago"
    return f"{line}: {last.text}" if last.text and not last.follows else line


def _judged(failure: WorkerFailure, worker: JSON, blamed: JSON) -> WorkerFailure:
    is_peer = failure.round == blamed.get("round") and worker["metadata"]["name"] != blamed.get("worker")
    if failure.what != ExitClass.HANG or failure.round is None or not is_peer:
        return failure
    return replace(failure, what=WAITED, follows=True)


def failures_of(job: JSON) -> Mapping[str, int]:
    """Return how often the job failed, by exit class."""
    return (job.get("status") or {}).get("failures") or {}


def by_cause(restarts: Mapping[str, int] | None) -> str:
    """Counts by cause, the most frequent first; empty without any."""
    counted = sorted((restarts or {}).items(), key=lambda item: (-item[1], item[0]))
    return ", ".join(f"{cause} {count}" for cause, count in counted if count)


@dataclass(frozen=True)
class Culprit:
    """The failure to look at first, in the words of status."""

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
        return _time(self.failure)


def find_culprit(job: JSON, workers: Sequence[JSON]) -> Culprit | None:
    """Return the culprit of the last failure; None if nothing has failed."""
    failure = (job.get("status") or {}).get("lastFailure")
    if not failure:
        return None
    worker = next((each for each in workers if each["metadata"]["name"] == failure["worker"]), None)
    if worker is None:
        return Culprit(failure, None, "", (), "")
    status, current = worker.get("status") or {}, worker["spec"].get("incarnation")
    agent, ended = status.get("agent") or {}, status.get("lastExit") or {}
    report = agent.get("failure") or {}
    report = report if _is_of_agent(report, failure) else {}
    ended = ended if ended.get("exitClass") == failure.get("exitClass") and _are_near(ended, failure) else {}
    life = _life_at(status.get("history") or (), _time(failure))
    of_pod = ended.get("incarnation") or life.get("incarnation") or current
    incarnation = agent.get("incarnation") if report else of_pod
    node = ended.get("nodeName") or life.get("nodeName")
    if not node and incarnation == current:
        node = status.get("nodeName")
    log = report.get("logTail") or ended.get("logTail") or ""
    peers = [each for each in workers if each["spec"].get("jobName") == worker["spec"].get("jobName")]
    return Culprit(failure, incarnation, node or "", _stacks_in(failure.get("round"), peers), log)


def _stacks_in(round_: int | None, workers: Sequence[JSON]) -> list[JSON]:
    reports = [((worker.get("status") or {}).get("agent") or {}).get("failure") or {} for worker in workers]
    of_round = [each for each in reports if round_ is not None and each.get("round") == round_]
    return [stack for each in of_round for stack in each.get("stacks") or ()]


def _is_of_agent(report: JSON, failure: JSON) -> bool:
    """Whether the agent's last failure is the job's: it has stayed the last one of that worker.

    A failure in place is known by its round: it is recorded whenever there is a controller to read of it.
    """
    if not report or report.get("rank") != failure.get("rank", report.get("rank")):
        return False
    round_ = failure.get("round")
    return _are_near(report, failure) if round_ is None else round_ == report.get("round")


def _are_near(one: JSON, other: JSON) -> bool:
    first, second = parse_time(one.get("time")), parse_time(other.get("time"))
    return first is not None and second is not None and abs(first - second) <= SAME_MOMENT


def _life_at(lives: Sequence[JSON], moment: datetime) -> JSON:
    """Return the newest incarnation that had begun by then; {} if history does not reach so far back."""
    begun = [life for life in lives if datetime.fromisoformat(life["createdAt"]) <= moment]
    return begun[-1] if begun else {}


def heading(culprit: Culprit, now: datetime) -> list[tuple[str, str]]:
    """Return (label, text) of worker, time, class and error; a text may have several lines."""
    failure = culprit.failure
    rank = f", rank {failure['rank']}" if failure.get("rank") is not None else ""
    pod = f", Pod {culprit.pod}" if culprit.pod else ", which is no worker of the job any more"
    where = f" on {culprit.node}" if culprit.node else ""
    when = [f"{culprit.time:%Y-%m-%d %H:%M:%S %Z}", f"{age(failure['time'], now)} ago"]
    when += [f"{each} {failure[each]}" for each in ("round", "step") if failure.get(each) is not None]
    code = failure.get("exitCode")
    message = str(failure.get("message") or "(no message)")
    return [
        ("Worker", f"{culprit.worker}{rank}{pod}{where}"),
        ("Failed", ", ".join(when)),
        ("Class", f"{failure['exitClass']}" + (f", exit code {code}" if code is not None else "")),
        ("Error", first_line(message) if culprit.stacks else message),  # the stacks are shown beside it
    ]
