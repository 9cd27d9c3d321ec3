"""The headline of a job: how it is, in one short sentence. Pure."""

from __future__ import annotations

from dataclasses import dataclass

from controller.wording import counted
from crds import names
from crds.grouping import group_count, is_grouped
from crds.job_status import JobState
from dlr.job import report
from dlr.job.advice import CANNOT_START, WAITS
from dlr.job.case import Case
from dlr.job.groups import training
from dlr.job.timeline.outages import cost_line
from dlr.job.wording import age, counted_by_thousands, parse_time

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


@dataclass(frozen=True)
class Headline:
    text: str
    word: str
    """A word whose tone the headline has."""


def headline(case: Case) -> Headline:
    """Say what the job does, on how many workers or groups, and what failures cost."""
    phase = report.phase(case.job)
    cost = cost_line(case.life) if case.life else ""
    lost = "".join(f"; {each}" for each in (report.deletion_line(case.job, case.now), cost) if each)
    if report.is_finished(case.job):
        ended = parse_time(case.status.get("completionTime")) or case.now
        after = age(case.job["metadata"]["creationTimestamp"], ended)
        return Headline(f"{phase} after {after}{lost}", phase)
    word = str(case.account.state) if case.account else phase
    does = DOES.get(word, word)
    if word == JobState.TRAINING:
        does, word = _trouble(case) or (does, word)
    elif word == JobState.PENDING and (reason := case.status.get("reason")):
        waits, _ = WAITS.get(reason, CANNOT_START)
        does = f"{waits[0].upper()}{waits[1:]}, with"
    return Headline(f"{does} {people(case)}{lost}", word)


def _trouble(case: Case) -> tuple[str, str] | None:
    """Return what a job in Training does instead, or how, and a word with its tone; None if all is well."""
    if (case.status.get("rendezvous") or {}).get("hangSince"):
        return "Hangs on", "Failed"
    if case.stall:
        return "Makes no step on", "Failed"
    broken = case.warning("ExchangeBroken") or {}
    if (broken.get("data") or {}).get("count", 0) > 1:
        return "Connects again and again, without a step, on", "Failed"
    if case.warning("NonFiniteLoss"):
        return "Trains, with a loss that is no number, on", "Failed"
    return ("Trains more slowly than before on", "Warning") if case.warning("Slow") else None


def people(case: Case) -> str:
    """Return how many of a job's workers, or of its groups, train; of one that does not train, are active."""
    if is_grouped(case.job):
        return f"{len(training(case.job)):,} of {counted_by_thousands(group_count(case.job), 'group')}"
    counts = (case.status.get("replicaStatuses") or {}).get(names.WORKER)
    if counts is None:
        return counted(case.job["spec"]["replicaSpecs"].get(names.WORKER, {}).get("replicas", 0), "worker")
    trains = case.account is not None and case.account.state == JobState.TRAINING
    members = report.members_of(case.status.get("rendezvous") or {}) if trains else []
    return f"{len(members) or counts.get('active', 0):,} of {counts.get('desired', 0):,} workers"
