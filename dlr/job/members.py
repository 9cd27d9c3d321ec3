"""The table of a job's workers, or of its replica groups, in a status. Pure."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from controller.wording import counted, first_line
from crds import names
from crds.elasticworker import ExitClass
from crds.grouping import group_name, is_grouped
from dlr.job.case import Case
from dlr.job.failures import by_cause
from dlr.job.groups import index_of, training
from dlr.job.report import AT_EASE, current_report, ranks, sort_workers, state_of
from dlr.job.wording import EPOCH, duration, in_command, loss, parse_time, significant
from dlr.kube.api import JSON

WORKER_COLUMNS = ("RANK", "POD", "NODE", "STATE", "STEP", "S/STEP", "RESTARTS", "LAST FAILURE")
GROUP_COLUMNS = ("GROUP", "PHASE", "TRAINS", "ROUND", "STEP", "RESTARTS", "LAST FAILURE", "WHY")
LEFT_OUT = ("NODE", "S/STEP", "ROUND", "WHY")
"""Columns that are left out on a narrow terminal."""
MOST_NOTES = 5


@dataclass(frozen=True)
class Members:
    noun: str
    columns: Sequence[str]
    rows: Sequence[JSON]
    """Cells of each row, by column."""
    notes: Sequence[str]
    """Lines below the table."""

    def most_telling(self, most: int) -> list[JSON]:
        """Choose rows for a screen, in their order: those in trouble first, then those with past failures."""
        chosen = sorted(range(len(self.rows)), key=lambda at: trouble(self.rows[at]))[:most]
        return [self.rows[at] for at in sorted(chosen)]

    def narrow(self, rows: Sequence[JSON]) -> tuple[list[str], list[JSON]]:
        """Return the columns and rows for a narrow terminal, without the causes of restarts."""
        columns = [column for column in self.columns if column not in LEFT_OUT]
        return columns, [row | {"RESTARTS": str(row["RESTARTS"]).partition(" ")[0]} for row in rows]


def trouble(row: JSON) -> int:
    """Return a sort key: 0 for a row in trouble, 1 for one with past failures, 2 for others."""
    if row.get("STATE", AT_EASE[0]) not in AT_EASE or row.get("TRAINS") == "no":
        return 0
    return 1 if row["LAST FAILURE"] or not str(row["RESTARTS"]).startswith("0") else 2


def members_of(case: Case) -> Members:
    if is_grouped(case.job):
        one = in_command(case.job["metadata"], group_name(case.name, 0))
        notes = [f"one group and its workers: dlr job status {one}"]
        return Members("group", GROUP_COLUMNS, [*_groups(case)], notes)
    rank_of = ranks(case.job)
    workers = sort_workers(case.workers)
    rows = [_worker(case, worker, rank_of) for worker in workers]
    return Members("worker", WORKER_COLUMNS, rows, _messages(workers))


def _worker(case: Case, worker: JSON, rank_of: dict[int, int]) -> JSON:
    spec, status = worker["spec"], worker.get("status") or {}
    progress = current_report(worker).get("progress") or {}
    speed = progress.get("secondsPerStep")
    return {
        "RANK": rank_of.get(spec["index"]) if spec["type"] == names.WORKER else None,
        "POD": status.get("podName") or f"{worker['metadata']['name']} (no Pod)",
        "NODE": status.get("nodeName"),
        "STATE": state_of(worker),
        "STEP": progress.get("step"),
        "S/STEP": None if speed is None else significant(speed),
        "RESTARTS": _restarts(status),
        "LAST FAILURE": _last_failure(case, worker),
    }


def _restarts(status: JSON) -> str:
    causes = by_cause(status.get("restarts"))
    total = status.get("restartCount") or sum((status.get("restarts") or {}).values())
    return f"{total} ({causes})" if causes else str(total)


def _last_failure(case: Case, worker: JSON) -> str | None:
    """Describe the last end of the worker's Pod, or the job's failure that it caused, whichever is later."""
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


def _messages(workers: Sequence[JSON]) -> list[str]:
    """Return messages of workers that do not run, the first few."""
    found = [
        f"{worker['metadata']['name']}: {status['message']}"
        for worker in workers
        if (status := worker.get("status") or {}).get("message")
        and status.get("phase") not in ("Succeeded", "Failed")
    ]
    more = len(found) - MOST_NOTES
    rest = [f"… and {counted(more, 'more worker')} with a message"] if more > 0 else []
    return [*found[:MOST_NOTES], *rest]


def _groups(case: Case) -> Iterator[JSON]:
    failure_of = {each.who: each for each in case.life.failures} if case.life else {}
    steps: dict[int, int] = {}
    for worker in case.workers:
        if (step := (current_report(worker).get("progress") or {}).get("step")) is not None:
            steps[index_of(worker)] = max(step, steps.get(index_of(worker), 0))
    together = set(training(case.job))
    for each in case.status.get("groups") or ():
        index, failed = each["index"], None
        if failure := failure_of.get(f"group-{index}"):
            back = ""  # without an outage it failed again before it trained
            if (outage := failure.outage) is not None and case.life is not None:
                is_back = outage.end < case.life.seconds
                back = f", back after {loss(outage.seconds)}" if is_back else ", not back yet"
                back = "" if each.get("phase") == "Failed" else back
            ago = duration(case.seconds_since(failure))
            failed = f"{ago} ago{back}: {failure.what}, {failure.text}"
        yield {
            "GROUP": index,
            "PHASE": each.get("phase"),
            "TRAINS": "yes" if index in together else "no",
            "ROUND": each.get("round"),
            "STEP": steps.get(index),
            "RESTARTS": each.get("restarts", 0),
            "LAST FAILURE": failed,
            "WHY": each.get("message") or None,
        }
