"""All jobs, a line each: what the page of the fleet shows. Pure functions of plain objects and `now`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import datetime, timedelta
from typing import Any

from crds import names
from dlr.commands.job import report
from dlr.commands.job.failures import broken_worlds, current_report, ended_pods
from dlr.commands.job.progress import Progress, total_steps
from dlr.commands.job.states import COLORS
from dlr.commands.job.timeline.episodes import Clock, episodes_of
from dlr.commands.output import parse_time

JSON = dict[str, Any]

LEAD_SELECTOR = f"{names.LABEL_TYPE}={names.WORKER},{names.LABEL_INDEX}=0"
"""One worker a job: ranks step together, so it tells how fast the job goes."""
MOST_JOBS = 500
STRIP = timedelta(hours=24)
MOST_WHY = 300


def fleet_page(jobs: Sequence[JSON], leads: Sequence[JSON], now: datetime) -> JSON:
    """
    Args:
        jobs: ElasticJobs of one namespace or of all.
        leads: those of their ElasticWorkers that LEAD_SELECTOR chooses.
    """
    lead_of = {(each["metadata"]["namespace"], each["spec"].get("jobName")): each for each in leads}
    ordered = sorted(jobs, key=lambda job: job["metadata"]["creationTimestamp"], reverse=True)
    ordered = sorted(ordered, key=report.is_finished)  # keeps the newest first
    return {
        "jobs": [_line(job, lead_of, now) for job in ordered[:MOST_JOBS]],
        "leftOut": max(0, len(ordered) - MOST_JOBS),
        "strip": STRIP.total_seconds(),
        "colors": COLORS,
    }


def _line(job: JSON, lead_of: Mapping[tuple[str, str], JSON], now: datetime) -> JSON:
    metadata, status = job["metadata"], job.get("status") or {}
    lead = lead_of.get((metadata["namespace"], metadata["name"]))
    finished = report.is_finished(job)
    progress = None if finished else _progress(job, lead)
    world = status.get("rendezvous") or {}
    return {
        "namespace": metadata["namespace"],
        "name": metadata["name"],
        "phase": report.phase(job),
        "state": None if finished else (status.get("goodput") or {}).get("state"),
        "why": report.why_line(job)[:MOST_WHY],
        "workers": report.workers_line(job),
        "round": world.get("round"),
        "made": metadata["creationTimestamp"],
        "ended": status.get("completionTime"),
        "goodput": (status.get("goodput") or {}).get("ratio"),
        "step": progress.step if progress else (status.get("goodput") or {}).get("lastStep"),
        "total": total_steps(job),
        "secondsPerStep": progress.seconds_per_step if progress else None,
        "secondsLeft": progress.seconds_left if progress else None,
        "failures": sum(broken_worlds(job).values()) + sum(ended_pods(job, []).values()),
        "states": strip_of(job, now),
    }


def _progress(job: JSON, lead: JSON | None) -> Progress | None:
    """Of the lead, or by the job's account, which lags behind."""
    account = (job.get("status") or {}).get("goodput") or {}
    told = current_report(lead).get("progress") if lead else None
    if told and told.get("step") is not None:
        return Progress(told["step"], total_steps(job), told.get("secondsPerStep"))
    if account.get("lastStep") is None:
        return None
    timed = account.get("stepsTimed")
    return Progress(
        account["lastStep"], total_steps(job), account["steppingSeconds"] / timed if timed else None
    )


def strip_of(job: JSON, now: datetime) -> list[list[Any]]:
    """[state, begin, end] of the last 24 hours, in seconds since these began; neighbours of one state as one.

    Of what history has forgotten, or was before the job, nothing.
    """
    status = job.get("status") or {}
    submitted = datetime.fromisoformat(job["metadata"]["creationTimestamp"])
    clock = Clock(submitted, parse_time(status.get("completionTime")) or now)
    offset = (submitted - (now - STRIP)).total_seconds()
    found: list[list[Any]] = []
    if not status.get("history"):
        return found
    for episode in episodes_of(status["history"], clock):
        begin, end = max(0.0, episode.span.begin + offset), episode.span.end + offset
        if end <= begin:
            continue
        if found and found[-1][0] == episode.span.state and begin - found[-1][2] < 1.0:
            found[-1][2] = round(end, 1)
        else:
            found.append([episode.span.state, round(begin, 1), round(end, 1)])
    return found
