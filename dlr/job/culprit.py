"""The failure to look at first: who it was, in which Pod, and what status kept of it. Pure functions."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from controller.wording import first_line
from dlr.job.failures import SAME_MOMENT
from dlr.job.wording import EPOCH, age, parse_time

JSON = dict[str, Any]


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
