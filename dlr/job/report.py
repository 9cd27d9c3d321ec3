"""Lines and columns of `dlr job`, from the objects of the cluster.

Pure functions of plain objects and `now`; the commands fetch and print.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from datetime import datetime

from controller.wording import first_line, held_by
from crds import names
from crds.checkpoint_files import Tier
from crds.grouping import is_grouped
from crds.ranges import ranked_from_text
from dlr.job.wording import age, counted_by_thousands, parse_time
from dlr.kube.api import JSON

Row = tuple[object, ...]

LIST_COLUMNS = ("NAME", "PHASE", "WORKERS", "ROUND", "WORLD", "AGE", "WHY")
NARROW_LIST_COLUMNS = ("NAME", "PHASE", "WORKERS", "AGE")
"""Columns on a narrow terminal, where WHY has lines of its own."""
EVENT_COLUMNS = ("LAST SEEN", "TYPE", "REASON", "MESSAGE")
FINISHED = ("Succeeded", "Failed")
AT_EASE = ("Running", "Succeeded", "Standby")
"""States of a worker without trouble."""


def phase(job: JSON) -> str:
    """Return the job's phase; `Unobserved` before a controller has set one."""
    return str(job.get("status", {}).get("phase") or "Unobserved")


def is_finished(job: JSON) -> bool:
    return phase(job) in FINISHED


def phase_since(job: JSON) -> str | None:
    """Return the time at which the job entered its phase, by its conditions; None if unknown."""
    phase = job.get("status", {}).get("phase")
    if not phase:
        return str(job["metadata"]["creationTimestamp"])
    found = condition_of(job, phase, "True")
    if not found and phase == "Scaling":
        found = condition_of(job, "Scaled", "False")
    elif not found:
        running = condition_of(job, "Running", "False")
        found = running if running.get("reason") in (phase, "NoReplicas") else {}
    return str(found["lastTransitionTime"]) if found else None


def condition_of(item: JSON, type_: str, status: str | None = None) -> JSON:
    """Return an object's condition of that type, if it has that status; {} without one."""
    for each in (item.get("status") or {}).get("conditions") or ():
        if each.get("type") == type_ and status in (None, each.get("status")):
            return dict(each)
    return {}


def message_of(condition: JSON) -> str:
    """Return a condition's message, or its reason; empty without either."""
    return str(condition.get("message") or condition.get("reason") or "")


def list_row(job: JSON, now: datetime) -> Row:
    world = job.get("status", {}).get("rendezvous") or {}
    stands = world.get("phase") and not is_finished(job)
    return (
        job["metadata"]["name"],
        phase(job),
        workers_line(job),
        world.get("round"),
        f"{len(members_of(world))} {world['phase'].lower()}" if stands else None,
        age(job["metadata"]["creationTimestamp"], now),
        deletion_line(job, now) or why_line(job),
    )


def least_workers(job: JSON) -> int:
    """Return the smallest number of workers with which the job starts."""
    spec = job["spec"]["replicaSpecs"].get(names.WORKER) or {}
    return int(spec.get("minReplicas") or spec.get("replicas") or 0)


def deletion_line(job: JSON, now: datetime) -> str:
    """Describe the age of a job's deletion, and its finalizers; empty if it is not deleted."""
    metadata = job["metadata"]
    if not metadata.get("deletionTimestamp"):
        return ""
    since = f"deleted {age(metadata['deletionTimestamp'], now)} ago"
    return ", ".join(filter(None, (since, held_by(metadata.get("finalizers")))))


def why_line(job: JSON) -> str:
    """Return the controller's reason why the job does not train; empty without one."""
    status = job.get("status") or {}
    return ": ".join(filter(None, (status.get("reason"), status.get("message"))))


def warnings_of(job: JSON) -> list[JSON]:
    """Return the job's warnings, the gravest first."""
    return (job.get("status") or {}).get("warnings") or []


def workers_line(job: JSON) -> str:
    """Return the active of the desired workers, and those that have ended."""
    counts = (job.get("status", {}).get("replicaStatuses") or {}).get(names.WORKER)
    if counts is None:
        return str(job["spec"]["replicaSpecs"].get(names.WORKER, {}).get("replicas", 0))
    ended = [f"{counts[state]} {state}" for state in ("succeeded", "failed", "standby") if counts.get(state)]
    if is_finished(job) and not counts.get("active"):
        return ", ".join(ended) or "none any more"
    return ", ".join([f"{counts.get('active', 0)}/{counts.get('desired', 0)}", *ended])


def phase_line(job: JSON, now: datetime) -> str:
    """Return the phase, its age, and the reason if the job has failed."""
    since = phase_since(job)
    line = f"{phase(job)} for {age(since, now)}" if since else phase(job)
    status = job.get("status", {})
    if status.get("completionTime"):
        took = age(job["metadata"]["creationTimestamp"], parse_time(status["completionTime"]) or now)
        line = f"{phase(job)} {age(status['completionTime'], now)} ago, {took} after its submission"
    failed = condition_of(job, "Failed")
    if phase(job) == "Failed" and failed.get("reason"):
        line += f": {failed['reason']}: {first_line(failed.get('message'))}"
    if phase(job) == "Succeeded" and (status.get("rendezvous") or {}).get("round") == 0:
        line += f": {first_line(condition_of(job, 'Succeeded').get('message'))}"  # perhaps without any agent
    if status.get("reason") == "NoReplicas":  # other reasons have a warning, which has a line of its own
        line += f": {status.get('message')}"
    return line


def world_line(job: JSON, now: datetime) -> str:
    if cluster := (job.get("status") or {}).get("cluster"):
        return _cluster_line(cluster)
    world = (job.get("status") or {}).get("rendezvous") or {}
    if is_finished(job) or phase(job) == "Suspended":
        return _last_world_line(world)
    if not world.get("phase"):
        return "none yet"
    formed = world["phase"] == "Formed"
    parts = [f"round {world.get('round', 0)} {world['phase']}"]
    since = world.get("formedAt") if formed else world.get("reformingSince")
    if since:
        parts.append(f"{age(since, now)} ago" if formed else f"for {age(since, now)}")
    if members_of(world):
        parts.append(f"{_people(world)}, master {world.get('masterAddress')}:{world.get('masterPort')}")
    line = ", ".join(parts)
    if resume := world.get("resume"):
        tier = resume["tier"]  # may be from a later version
        line += f", resumed {Tier(tier).origin if tier in [*Tier] else f'from {tier}'}"
        line += f" at step {resume['step']}" if "step" in resume else ""
    why = "; ".join(filter(None, (world.get("reason"), world.get("waitsFor"))))
    return f"{line} ({why})" if why else line


def _cluster_line(cluster: JSON) -> str:
    """Describe a job with parameter servers: by type, the workers in the order of their tasks."""
    tasks = ", ".join(f"{type_} {slots}" for type_, slots in (cluster.get("tasks") or {}).items())
    lost = f"; not running: ps {cluster['lost']}" if cluster.get("lost") else ""
    return f"none; version {cluster.get('version')} of the cluster: {tasks}{lost}"


def _last_world_line(world: JSON) -> str:
    """Describe the last world of a job that has ended, or is suspended."""
    if not world.get("round"):
        return "there never was one"
    people = f", {_people(world)}" if members_of(world) else ""
    return f"none any more; the last was round {world['round']}{people}"


def _people(world: JSON) -> str:
    """Return the numbers of a world's workers and processes."""
    workers = counted_by_thousands(len(members_of(world)), "worker")
    return f"{workers}, {counted_by_thousands(world.get('worldSize', 0), 'process', 'processes')}"


def ranks(job: JSON) -> dict[int, int]:
    """Return the node rank by worker index, in the current world; after the job's end, in the last."""
    world = job.get("status", {}).get("rendezvous") or {}
    return {index: rank for rank, index in enumerate(members_of(world))}


def members_of(world: JSON) -> list[int]:
    """Return the indices of a world's members, in rank order."""
    return ranked_from_text(world.get("members") or "")


def current_report(worker: JSON) -> JSON:
    """Return the report of the agent of the current incarnation; {} if the report is an older one's."""
    agent: JSON = (worker.get("status") or {}).get("agent") or {}
    return agent if agent.get("incarnation") == worker["spec"].get("incarnation") else {}


def state_of(worker: JSON) -> str | None:
    """Return the agent's state while the Pod runs, otherwise the worker's phase."""
    status = worker.get("status") or {}
    phase: str | None = status.get("phase")
    if phase != "Running":
        end = status.get("lastExit") or {}
        is_planned = end.get("planned") and end.get("incarnation") == worker["spec"].get("incarnation")
        return "Stopped" if phase == "Failed" and is_planned else phase
    if worker["status"].get("standby"):
        return "Standby"
    return str(current_report(worker).get("state") or "Starting")


def is_ready(node_or_pod: JSON) -> bool:
    return bool(condition_of(node_or_pod, "Ready", "True"))


def sort_workers(workers: Sequence[JSON]) -> list[JSON]:
    return sorted(workers, key=lambda worker: (worker["spec"]["type"], worker["spec"]["index"]))


def by_job(workers: Iterable[JSON]) -> dict[str, list[JSON]]:
    """Return workers by the name of their ElasticJob, which is a group's if the job has groups."""
    found: dict[str, list[JSON]] = {}
    for worker in workers:
        found.setdefault(worker["spec"].get("jobName", ""), []).append(worker)
    return found


def job_events(events: Sequence[JSON], job: JSON) -> list[JSON]:
    """Return the Events of the job, its replica groups, workers and Pods, past and present, oldest first."""
    types = "|".join(map(re.escape, job["spec"]["replicaSpecs"]))
    name = re.escape(job["metadata"]["name"]) + (r"(?:-group-\d+)?" if is_grouped(job) else "")
    patterns = {
        "ElasticJob": re.compile(name),
        "ElasticWorker": re.compile(rf"{name}-({types})-\d+"),
        "Pod": re.compile(rf"{name}-({types})-\d+-\d+"),
    }
    made = _at(job["metadata"]["creationTimestamp"])

    def concerns(event: JSON) -> bool:
        involved = event.get("involvedObject") or {}
        pattern = patterns.get(involved.get("kind", ""))
        # An earlier job of the same name left Events, too.
        return bool(pattern and pattern.fullmatch(involved.get("name", ""))) and _instant(event) >= made

    return sorted(filter(concerns, events), key=_order)


def event_row(event: JSON, job: JSON, now: datetime) -> tuple[str, str, str, str]:
    """Return a row for EVENT_COLUMNS; the message names its object, unless that is the job itself."""
    name, message = event["involvedObject"]["name"], event.get("message") or ""
    subject = "" if name == job["metadata"]["name"] or message.startswith(name) else f"{name}: "
    return _seen(event, now), event.get("type") or "", event.get("reason") or "", f"{subject}{message}"


def _seen(event: JSON, now: datetime) -> str:
    count = (event.get("series") or {}).get("count") or event.get("count") or 1
    seen = age(event_time(event), now)
    return f"{seen} (x{count})" if count > 1 else str(seen)


def event_time(event: JSON) -> str:
    """Return the time at which an Event was last seen; the field depends on the client that recorded it."""
    series = event.get("series") or {}
    return str(
        series.get("lastObservedTime")
        or event.get("lastTimestamp")
        or event.get("eventTime")
        or event["metadata"]["creationTimestamp"]
    )


def _order(event: JSON) -> tuple[float, int]:
    """Return the sort key: the time, and within a second the resource version."""
    version = str(event["metadata"].get("resourceVersion") or "")
    return _instant(event), int(version) if version.isdecimal() else 0


def _instant(event: JSON) -> float:
    return _at(event_time(event))


def _at(text: str) -> float:
    moment = parse_time(text)
    return moment.timestamp() if moment else 0.0
