"""The headline of a job: how it is, in one short sentence. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from controller.wording import counted
from crds import names
from crds.grouping import is_grouped
from crds.job_status import JobState
from dlr.job import report
from dlr.job.advice import CANNOT_START, WAITS
from dlr.job.case import Case
from dlr.job.findings import Finding
from dlr.job.groups import group_count, training, tree
from dlr.job.timeline.outages import outages_of, own_failures
from dlr.job.tones import TONES, tone_of
from dlr.job.wording import age, duration, parse_time, significant

JSON = dict[str, Any]

SHORT_SECONDS = 10.0
"""Below that, a time has decimals."""
DOES: dict[str, str] = {
    JobState.TRAINING: "Trains on",
    JobState.FORMING: "Starts training on",
    JobState.CHECKING: "Tests its nodes, with",
    JobState.RECOVERING: "Recovers on",
    JobState.DOWN: "Down, with",
    JobState.PENDING: "Waits, with",
    JobState.SUSPENDED: "Suspended, with",
    "Running": "Runs on",
    "Scaling": "Scales, with",
    "Restarting": "Restarts on",
    "Unobserved": "Not seen by a controller yet, with",
}
"""By state or phase."""
UNUSUAL: dict[str, tuple[str, str]] = {
    "Stalled": ("Makes no step on", "Failed"),
    "Slow": ("Trains more slowly than before on", "Warning"),
    "NonFiniteLoss": ("Trains, with a loss that is no number, on", "Failed"),
}
"""By the cause of the first finding about a job that trains: what it does, and a word with its tone."""


HANGS = ("Hangs on", "Failed")


@dataclass(frozen=True)
class Headline:
    text: str
    word: str
    """A word whose tone the headline has."""


def headline(case: Case, found: Sequence[Finding]) -> Headline:
    """
    Args:
        found: the job's findings, the gravest first.
    """
    phase = report.phase(case.job)
    lost = _lost(case)
    if report.is_finished(case.job):
        ended = parse_time(case.status.get("completionTime")) or case.now
        after = age(case.job["metadata"]["creationTimestamp"], ended)
        return Headline(f"{phase} after {after}{lost}", phase)
    word = str(case.account.state) if case.account else phase
    does = DOES.get(word, word)
    if word == JobState.TRAINING:
        hangs = (case.status.get("rendezvous") or {}).get("hangSince")
        does, word = HANGS if hangs else UNUSUAL.get(found[0].cause, (does, word))
    elif word == JobState.PENDING and (reason := case.status.get("reason")):
        waits, _ = WAITS.get(reason, CANNOT_START)
        does = f"{waits[0].upper()}{waits[1:]}, with"
    return Headline(f"{does} {people(case)}{lost}", word)


def people(case: Case) -> str:
    """Return how many of a job's workers, or of its groups, are active."""
    if is_grouped(case.job):
        return f"{len(training(case.job))} of {counted(group_count(case.job), 'group')}"
    counts = (case.status.get("replicaStatuses") or {}).get(names.WORKER)
    if counts is None:
        return counted(case.job["spec"]["replicaSpecs"].get(names.WORKER, {}).get("replicas", 0), "worker")
    return f"{counts.get('active', 0):,} of {counts.get('desired', 0):,} workers"


def _lost(case: Case) -> str:
    if case.life is None or not (failed := own_failures(case.life)):
        return ""
    return f"; {counted(len(failed), 'failure')}, {cost(case)} lost"


def cost(case: Case) -> str:
    """Return the time that failures cost, as far as the job's history goes."""
    seconds = sum(outage.seconds for outage in outages_of(case.life)) if case.life else 0.0
    return f"{significant(seconds)} s" if seconds < SHORT_SECONDS else duration(seconds)


def headline_of_jobs(jobs: Sequence[JSON]) -> str:
    """Say how many of the jobs that have not ended train."""
    active = [job for job, is_group in tree(jobs) if not is_group and not report.is_finished(job)]
    if not active:
        return "No job is active" if jobs else "No jobs"
    trains = sum(tone_of(state_of(job)) is TONES[0] for job in active)
    return f"{trains} of {counted(len(active), 'active job')} {'trains' if trains == 1 else 'train'}"


def state_of(job: JSON) -> str:
    """Return what takes the job's time at present; its phase, if nothing does."""
    state = None if report.is_finished(job) else ((job.get("status") or {}).get("goodput") or {}).get("state")
    return state or report.phase(job)
