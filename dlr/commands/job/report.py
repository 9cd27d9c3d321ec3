"""What `dlr job` says of a job: the objects of the cluster, read into lines and columns.

Pure functions of plain objects and `now`; the commands fetch and print.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from datetime import datetime
from typing import Any

from crds import names
from dlr.commands.output import age, parse_time

JSON = dict[str, Any]
Row = tuple[object, ...]

LIST_COLUMNS = ("NAME", "PHASE", "WORKERS", "ROUND", "WORLD", "AGE")
CONDITION_COLUMNS = ("CONDITION", "STATUS", "SINCE", "REASON", "MESSAGE")
WORKER_COLUMNS = ("RANK", "POD", "NODE", "PHASE", "STATE", "RESTARTS", "STEP")
EVENT_COLUMNS = ("LAST SEEN", "TYPE", "REASON", "OBJECT", "MESSAGE")
MOST_NOTES = 5
FINISHED = ("Succeeded", "Failed")


def phase(job: JSON) -> str:
    """A job that no controller has seen yet has no phase of its own."""
    return str(job.get("status", {}).get("phase") or "Unobserved")


def is_finished(job: JSON) -> bool:
    return phase(job) in FINISHED


def phase_since(job: JSON) -> str:
    """When the job entered its phase: its condition tells, where there is one."""
    status = job.get("status", {})
    for condition in status.get("conditions") or []:
        if condition.get("type") == status.get("phase") and condition.get("status") == "True":
            return str(condition["lastTransitionTime"])
    return str(job["metadata"]["creationTimestamp"])


def list_row(job: JSON, now: datetime) -> Row:
    world = job.get("status", {}).get("rendezvous") or {}
    return (
        job["metadata"]["name"],
        phase(job),
        _workers_of(job),
        world.get("round"),
        f"{len(world.get('members') or [])} {world['phase'].lower()}" if world.get("phase") else None,
        age(job["metadata"]["creationTimestamp"], now),
    )


def _workers_of(job: JSON) -> str:
    """Active of desired; what has ended says so."""
    counts = (job.get("status", {}).get("replicaStatuses") or {}).get(names.WORKER)
    if counts is None:
        return str(job["spec"]["replicaSpecs"].get(names.WORKER, {}).get("replicas", 0))
    ended = [f"{counts[state]} {state}" for state in ("succeeded", "failed") if counts.get(state)]
    return ", ".join([f"{counts.get('active', 0)}/{counts.get('desired', 0)}", *ended])


def summary(job: JSON, now: datetime) -> list[tuple[str, str]]:
    """The head of a status: (label, text)."""
    status = job.get("status", {})
    lines = [
        ("Job", f"{job['metadata']['namespace']}/{job['metadata']['name']}"),
        ("Phase", f"{phase(job)} for {age(phase_since(job), now)}"),
        ("Workers", _workers_of(job)),
        ("World", world_line(status.get("rendezvous") or {}, now)),
    ]
    if failure := status.get("lastFailure"):
        lines.append(("Last failure", _failure_line(failure, now)))
    if status.get("completionTime"):
        took = age(status.get("startTime"), parse_time(status["completionTime"]) or now)
        lines.append(("Took", str(took)))
    return lines


def world_line(world: JSON, now: datetime) -> str:
    if not world.get("phase"):
        return "none yet"
    parts = [f"round {world.get('round', 0)} {world['phase']}"]
    if world["phase"] == "Formed" and world.get("formedAt"):
        parts.append(f"{age(world['formedAt'], now)} ago")
    if world.get("members"):
        parts.append(
            f"{len(world['members'])} workers, {world.get('worldSize', 0)} processes, "
            f"master {world.get('masterAddress')}:{world.get('masterPort')}"
        )
    line = ", ".join(parts)
    return f"{line} ({world['reason']})" if world.get("reason") else line


def _failure_line(failure: JSON, now: datetime) -> str:
    rank = f" rank {failure['rank']}" if failure.get("rank") is not None else ""
    code = f", exit code {failure['exitCode']}" if failure.get("exitCode") is not None else ""
    message = f": {failure['message']}" if failure.get("message") else ""
    return (
        f"{failure['worker']}{rank}, {failure['exitClass']}{code}, {age(failure['time'], now)} ago{message}"
    )


def condition_rows(job: JSON, now: datetime) -> list[Row]:
    return [
        (
            condition["type"],
            condition["status"],
            age(condition.get("lastTransitionTime"), now),
            condition.get("reason"),
            condition.get("message"),
        )
        for condition in job.get("status", {}).get("conditions") or []
    ]


def ranks(job: JSON) -> dict[int, int]:
    """Worker index → node rank, for the members of the current world."""
    world = job.get("status", {}).get("rendezvous") or {}
    return {index: rank for rank, index in enumerate(world.get("members") or [])}


def sort_workers(workers: Sequence[JSON]) -> list[JSON]:
    return sorted(workers, key=lambda worker: (worker["spec"]["type"], worker["spec"]["index"]))


def worker_rows(job: JSON, workers: Sequence[JSON]) -> list[Row]:
    rank_of = ranks(job)
    return [_worker_row(worker, rank_of) for worker in sort_workers(workers)]


def _worker_row(worker: JSON, rank_of: dict[int, int]) -> Row:
    spec, status = worker["spec"], worker.get("status") or {}
    agent = current_report(worker)
    return (
        rank_of.get(spec["index"]) if spec["type"] == names.WORKER else None,
        status.get("podName") or f"{worker['metadata']['name']} (no Pod)",
        status.get("nodeName"),
        status.get("phase"),
        agent.get("state"),
        _restarts(status),
        (agent.get("progress") or {}).get("step"),
    )


def worker_notes(workers: Sequence[JSON]) -> list[str]:
    """What keeps workers from running, or how they failed: the first few that have something to say."""
    statuses = [(worker["metadata"]["name"], worker.get("status") or {}) for worker in sort_workers(workers)]
    notes = [
        f"{name}: {status['message']}"
        for name, status in statuses
        if status.get("message") and status.get("phase") != "Succeeded"
    ]
    rest = len(notes) - MOST_NOTES
    return notes if rest <= 0 else [*notes[:MOST_NOTES], f"… and {rest} more workers with a message"]


def current_report(worker: JSON) -> JSON:
    """What the agent of the current incarnation says; an older one's words count no more."""
    agent: JSON = (worker.get("status") or {}).get("agent") or {}
    return agent if agent.get("incarnation") == worker["spec"].get("incarnation") else {}


def _restarts(status: JSON) -> str:
    causes = {cause: count for cause, count in (status.get("restarts") or {}).items() if count}
    total = status.get("restartCount") or sum(causes.values())
    detail = ", ".join(f"{cause} {count}" for cause, count in sorted(causes.items()))
    return f"{total} ({detail})" if detail else str(total)


def job_events(events: Sequence[JSON], job: JSON) -> list[JSON]:
    """Events of the job, its workers and its Pods, past and present, oldest first."""
    types = "|".join(map(re.escape, job["spec"]["replicaSpecs"]))
    name = re.escape(job["metadata"]["name"])
    patterns = {
        "ElasticJob": re.compile(name),
        "ElasticWorker": re.compile(rf"{name}-({types})-\d+"),
        "Pod": re.compile(rf"{name}-({types})-\d+-\d+"),
    }
    since = job["metadata"]["creationTimestamp"]

    def concerns(event: JSON) -> bool:
        involved = event.get("involvedObject") or {}
        pattern = patterns.get(involved.get("kind", ""))
        # A namesake that was deleted before this job was made left events behind too.
        return bool(pattern and pattern.fullmatch(involved.get("name", ""))) and _instant(event) >= _at(since)

    return sorted(filter(concerns, events), key=_instant)


def event_row(event: JSON, now: datetime) -> Row:
    involved = event["involvedObject"]
    count = (event.get("series") or {}).get("count") or event.get("count") or 1
    seen = age(event_time(event), now)
    return (
        f"{seen} (x{count})" if count > 1 else seen,
        event.get("type"),
        event.get("reason"),
        f"{involved['kind'].lower()}/{involved['name']}",
        event.get("message"),
    )


def event_time(event: JSON) -> str:
    """When it was last seen: the field differs with who recorded it."""
    series = event.get("series") or {}
    return str(
        series.get("lastObservedTime")
        or event.get("lastTimestamp")
        or event.get("eventTime")
        or event["metadata"]["creationTimestamp"]
    )


def _instant(event: JSON) -> float:
    return _at(event_time(event))


def _at(text: str) -> float:
    moment = parse_time(text)
    return moment.timestamp() if moment else 0.0


def change_line(job: JSON, workers: Sequence[JSON]) -> str:
    """A watch's line where there is no terminal: equal as long as nothing worth a line has happened."""
    world = job.get("status", {}).get("rendezvous") or {}
    restarts = sum((worker.get("status") or {}).get("restartCount") or 0 for worker in workers)
    return (
        f"{phase(job)}, workers {_workers_of(job)}, "
        f"round {world.get('round', 0)} {world.get('phase') or 'not formed'}, restarts {restarts}"
    )
