"""Failures in a job's status: the culprit, and restarts by cause. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta

from controller.wording import first_line
from crds.elasticworker import ExitClass
from dlr.job.wording import EPOCH, age, parse_time
from dlr.kube.api import JSON
from reconcilers.failure.incidents import switch_words

SAME_MOMENT = timedelta(seconds=5)
"""Largest distance between two reports of one failure that name no round."""


def job_failure_line(failure: JSON, now: datetime) -> str:
    """Describe `status.lastFailure`: worker, class and time, with the first line of its message."""
    rank = f" rank {failure['rank']}" if failure.get("rank") is not None else ""
    if failure["exitClass"] == ExitClass.UNKNOWN:
        return f"an unknown peer's; {failure['worker']}{rank} lost it {age(failure['time'], now)} ago"
    parts = [f"{failure['worker']}{rank}", str(failure["exitClass"])]
    for key, label in (("exitCode", "exit code"), ("step", "step"), ("round", "round")):
        if failure.get(key) is not None and not (key == "exitCode" and _begins_with_its_exit_code(failure)):
            parts.append(f"{label} {failure[key]}")
    parts.append(f"{age(failure['time'], now)} ago")
    text = first_line(failure.get("message"))
    return switch_words(failure.get("domain")) + ", ".join(parts) + (f": {text}" if text else "")


def _begins_with_its_exit_code(failure: JSON) -> bool:
    """Whether the message begins with the exit code, which then need not be repeated."""
    return first_line(failure.get("message")).startswith(f"exit code {failure.get('exitCode')}")


def _time(failure: JSON) -> datetime:
    return parse_time(failure["time"]) or EPOCH


def failures_of(job: JSON) -> Mapping[str, int]:
    """Return how often the job failed, by exit class."""
    return (job.get("status") or {}).get("failures") or {}


def by_cause(restarts: Mapping[str, int] | None) -> str:
    """Return the counts by cause, the most frequent first; empty without any."""
    counted = sorted((restarts or {}).items(), key=lambda item: (-item[1], item[0]))
    return ", ".join(f"{cause} {count}" for cause, count in counted if count)


@dataclass(frozen=True)
class Culprit:
    """The failure to look at first, from the status."""

    failure: JSON
    """`status.lastFailure` of the job."""
    incarnation: int | None
    """The worker's incarnation at the failure; None if the worker is gone."""
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
    ended = ended if ended.get("exitClass") == failure.get("exitClass") and are_near(ended, failure) else {}
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
    """Whether the agent's last failure is also the job's.

    A failure in place is identified by its round: its time in the job's status depends on the controller.
    """
    if not report or report.get("rank") != failure.get("rank", report.get("rank")):
        return False
    round_ = failure.get("round")
    return are_near(report, failure) if round_ is None else round_ == report.get("round")


def are_near(one: JSON, other: JSON) -> bool:
    """Whether two reports are of about the same time."""
    first, second = parse_time(one.get("time")), parse_time(other.get("time"))
    return first is not None and second is not None and abs(first - second) <= SAME_MOMENT


def _life_at(lives: Sequence[JSON], moment: datetime) -> JSON:
    """Return the newest incarnation that began before a moment; {} if the history begins later."""
    begun = [life for life in lives if datetime.fromisoformat(life["createdAt"]) <= moment]
    return begun[-1] if begun else {}


def heading(culprit: Culprit, now: datetime) -> list[tuple[str, str]]:
    """Return the labels and texts of worker, time, class and error; a text may have several lines."""
    failure = culprit.failure
    rank = f", rank {failure['rank']}" if failure.get("rank") is not None else ""
    pod = f", Pod {culprit.pod}" if culprit.pod else ", which is no worker of the job any more"
    where = f" on {culprit.node}" if culprit.node else ""
    when = [f"{culprit.time:%Y-%m-%d %H:%M:%S %Z}", f"{age(failure['time'], now)} ago"]
    when += [f"{each} {failure[each]}" for each in ("round", "step") if failure.get(each) is not None]
    code, is_in_message = failure.get("exitCode"), _begins_with_its_exit_code(failure)
    message = str(failure.get("message") or "(no message)")
    return [
        ("Worker", f"{culprit.worker}{rank}{pod}{where}"),
        ("Failed", ", ".join(when)),
        (
            "Class",
            f"{failure['exitClass']}" + ("" if code is None or is_in_message else f", exit code {code}"),
        ),
        ("Error", first_line(message) if culprit.stacks else message),  # the stacks are shown, too
    ]
