"""Content of the page of all jobs, one line each. Pure functions of plain objects and `now`."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from datetime import datetime, timedelta
from typing import Any

from crds import names
from crds.grouping import is_grouped
from dlr.job import report
from dlr.job.case import Case
from dlr.job.groups import group_of, groups_line, headline_of_jobs, index_of, state_of, tree
from dlr.job.progress import total_steps
from dlr.job.timeline.episodes import JobClock, episodes_of
from dlr.job.unreadable import UNREADABLE, of_all
from dlr.job.verdict import verdict
from dlr.job.wording import parse_time
from dlr.kube.api import JSON

LEAD_SELECTOR = f"{names.LABEL_TYPE}={names.WORKER},{names.LABEL_INDEX}=0"
"""Selector of the first worker of each job: ranks step together, so its speed is the job's."""
MOST_JOBS = 500
MOST_STRIP = timedelta(hours=24)
LEAST_STRIP = timedelta(minutes=5)
MOST_WHY = 300


def fleet_page(jobs: Sequence[JSON], leads: Sequence[JSON], now: datetime) -> JSON:
    """Return the content of the page of all jobs.

    Args:
        jobs: ElasticJobs of one namespace or of all.
        leads: their ElasticWorkers that match LEAD_SELECTOR.
    """
    return of_all(jobs, lambda some: _page(some, leads, now))


def _page(jobs: Sequence[JSON], leads: Sequence[JSON], now: datetime) -> JSON:
    cases = cases_of(jobs, leads, now)
    strip = strip_length(jobs, now)
    ordered = sorted(jobs, key=lambda job: job["metadata"]["creationTimestamp"], reverse=True)
    ordered = sorted(ordered, key=report.is_finished)  # keeps the newest first
    return {
        "headline": headline_of_jobs(jobs),
        "jobs": [_line(cases[_key(job)], strip, is_group) for job, is_group in tree(ordered)[:MOST_JOBS]],
        "leftOut": max(0, len(ordered) - MOST_JOBS),
        "strip": strip.total_seconds(),
    }


def _key(job: JSON) -> tuple[str, str]:
    return job["metadata"]["namespace"], job["metadata"]["name"]


def cases_of(jobs: Sequence[JSON], leads: Iterable[JSON], now: datetime) -> dict[tuple[str, str], Case]:
    """Return the jobs by namespace and name, each with its first worker, or its groups' first workers."""
    workers: dict[tuple[str, str], list[JSON]] = {}
    for each in leads:
        whole = (each["metadata"].get("labels") or {}).get(names.LABEL_GROUPED_JOB)
        for name in filter(None, (each["spec"].get("jobName"), whole)):
            workers.setdefault((each["metadata"]["namespace"], name), []).append(each)
    groups: dict[str, list[JSON]] = {}
    for job in jobs:
        if (group := group_of(job)) is not None:
            groups.setdefault(group.uid, []).append(job)
    found = {}
    for job in jobs:
        own = sorted(groups.get(str(job["metadata"].get("uid")), ()), key=index_of)
        found[_key(job)] = Case(job, workers.get(_key(job), []), (), now, groups=own)
    return found


def _line(case: Case, strip: timedelta, is_group: bool) -> JSON:
    job, now, top = case.job, case.now, verdict(case)
    metadata, status = job["metadata"], job.get("status") or {}
    is_over = report.is_finished(job) or report.phase(job) == UNREADABLE
    progress = None if is_over else case.progress
    world = status.get("rendezvous") or {}
    return {
        "namespace": metadata["namespace"],
        "name": metadata["name"],
        "isGroup": is_group,
        "groups": groups_line(job) if is_grouped(job) else "",
        "phase": report.phase(job),
        "state": state_of(job),
        "verdict": {"text": top.text, "state": top.word},
        "why": report.why_line(job)[:MOST_WHY],
        "workers": report.workers_line(job),
        "round": world.get("round"),
        "made": metadata["creationTimestamp"],
        "ended": status.get("completionTime"),
        "goodput": case.account.ratio if case.account else None,
        "step": progress.step if progress else (status.get("goodput") or {}).get("lastStep"),
        "total": total_steps(job),
        "secondsPerStep": progress.seconds_per_step if progress else None,
        "secondsLeft": progress.seconds_left if progress else None,
        "failures": top.failures,
        "states": strip_of(job, now, strip),
    }


def strip_length(jobs: Sequence[JSON], now: datetime) -> timedelta:
    """Return 24 hours, or less if all jobs are younger: minutes would be invisible in a day."""
    oldest = min((datetime.fromisoformat(job["metadata"]["creationTimestamp"]) for job in jobs), default=now)
    return max(LEAST_STRIP, min(MOST_STRIP, now - oldest))


def strip_of(job: JSON, now: datetime, length: timedelta) -> list[list[Any]]:
    """Return the job's states as [state, begin, end], in seconds since the beginning of the strip.

    Equal neighbours are joined. Times before the job, or before its history, are left out.
    """
    status = job.get("status") or {}
    submitted = datetime.fromisoformat(job["metadata"]["creationTimestamp"])
    clock = JobClock(submitted, parse_time(status.get("completionTime")) or now)
    offset = (submitted - (now - length)).total_seconds()
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
