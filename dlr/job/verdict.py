"""The verdict of a job: its state, what is wrong and why, what failures cost, what to do. Pure.

`dlr job status`, `diagnose`, `timeline` and the dashboard print it, and decide nothing themselves. Its text
is based on the job's status, and on the steps of those workers that were read: all counts are counters of
the status (docs/contract.md).
"""

from __future__ import annotations

from dataclasses import dataclass

from controller.wording import counted, first_line
from crds import names
from crds.elasticworker import ExitClass
from crds.grouping import group_count, is_grouped
from crds.job_status import JobState
from dlr.job import report
from dlr.job.advice import CANNOT_START, WAITS
from dlr.job.case import Case
from dlr.job.failures import failures_of
from dlr.job.findings import PEOPLE, JobFinding, findings, next_start_of
from dlr.job.goodput import account_of, redone
from dlr.job.groups import training
from dlr.job.odd_ranks import OddRanks, odd_ranks
from dlr.job.tones import tone_of
from dlr.job.wording import age, counted_by_thousands, loss, parse_time
from reconcilers.failure.facts import RESTARTED
from reconcilers.failure.meaning import meaning_of
from reconcilers.goodput.goodput import AFTER_A_FAILURE, lost_seconds

DOES: dict[str, str] = {
    JobState.TRAINING: f"Trains on {PEOPLE}",
    JobState.FORMING: f"Starts training on {PEOPLE}",
    JobState.CHECKING: f"Tests its nodes, with {PEOPLE}",
    JobState.RECOVERING: f"Recovers on {PEOPLE}",
    JobState.REFORMING: f"Forms its groups again on {PEOPLE}",
    JobState.DOWN: f"Down, with {PEOPLE}",
    JobState.PENDING: f"Waits, with {PEOPLE}",
    JobState.SUSPENDED: f"Suspended, with {PEOPLE}",
    "Running": f"Runs on {PEOPLE}",
    "Scaling": f"Scales, with {PEOPLE}",
    "Restarting": f"Restarts on {PEOPLE}",
    "Unobserved": f"Not seen by a controller yet, with {PEOPLE}",
}
"""What a job does, by state or phase."""

WELL = ("good", "busy")
"""Tones of states in which nothing is wrong."""


@dataclass(frozen=True)
class JobVerdict:
    text: str
    """One sentence without its full stop: what the job does, and what failures cost."""
    word: str
    """A word with the text's tone."""
    cause: str
    """The cause in one word, for programs: a reason of a condition, an exit class, or a phase."""
    next_start: str
    """STOP or RESTART and the reason, for the culprit; empty without a failure."""
    failures: int
    """Number of failures since submission."""
    lost_seconds: float
    """Time that failures cost, up to the last resumption of training."""
    findings: tuple[JobFinding, ...]
    """Findings with advice, the gravest first."""
    odd: tuple[OddRanks, ...]
    """Ranks that differ from the others, the gravest kind first."""


def verdict(case: Case) -> JobVerdict:
    phase, found = report.phase(case.job), tuple(findings(case))
    state, word = _does(case, phase, found)
    failures, lost = sum(failures_of(case.job).values()), _lost_seconds(case)
    parts = (state, report.deletion_line(case.job, case.now), _cost(case, failures, lost))
    is_well = phase == "Succeeded" or not found
    return JobVerdict(
        text="; ".join(filter(None, parts)),
        word=word,
        cause=phase if is_well else found[0].cause,
        next_start=next_start_of(case),
        failures=failures,
        lost_seconds=lost,
        findings=found,
        odd=tuple(odd_ranks(case)),
    )


def _does(case: Case, phase: str, found: tuple[JobFinding, ...]) -> tuple[str, str]:
    """Return what the job does, and a word with its tone."""
    gravest = next((each for each in found if each.headline), None)
    if report.is_finished(case.job):
        ended = parse_time(case.status.get("completionTime")) or case.now
        after = f"{phase} after {age(case.job['metadata']['creationTimestamp'], ended)}"
        if phase == "Succeeded" and gravest is not None:
            return f"{after}, {gravest.headline}", gravest.tone
        return after, phase
    word = str(case.account.state) if case.account else phase
    does = DOES.get(word, f"{word}, with {PEOPLE}")
    if word == JobState.PENDING:
        does = f"{_waits(case)}, with {PEOPLE}"
    if word in (JobState.RECOVERING, JobState.REFORMING) and (why := _why_it_recovers(case)):
        does = f"{does}: {why}"
    if gravest is not None:
        is_clause = PEOPLE not in gravest.headline and not gravest.headline[0].isupper()
        does = f"{does}, {gravest.headline}" if is_clause else gravest.headline
        word = gravest.tone if tone_of(word).name in WELL else word
    return does.replace(PEOPLE, people(case)), word


def _waits(case: Case) -> str:
    """Return what a job waits for before its world is formed, by its status."""
    if reason := case.status.get("reason"):
        waits, _ = WAITS.get(reason, CANNOT_START)
        return f"{waits[0].upper()}{waits[1:]}"
    world = case.status.get("rendezvous") or {}
    counts = (case.status.get("replicaStatuses") or {}).get(names.WORKER) or {}
    if not counts.get("desired") or world.get("reason") or world.get("waitsFor"):
        return "Waits"
    all_run = counts.get("active", 0) >= counts["desired"]
    return "Waits for its agents to start" if all_run else "Waits for its Pods to run"


def _why_it_recovers(case: Case) -> str:
    """Describe the failure from which the job recovers, in a few words; empty if unknown."""
    failure, since = case.status.get("lastFailure") or {}, case.account.since if case.account else None
    time, class_ = parse_time(failure.get("time")), str(failure.get("exitClass"))
    if time is None or since is None or time < since or class_ == ExitClass.UNKNOWN or is_grouped(case.job):
        return ""
    message = first_line(failure.get("message"))
    if class_ == ExitClass.NODE_LOST and message.endswith(RESTARTED):
        return message
    who = str(failure["worker"]).removeprefix(f"{case.name}-").replace("-", " ")
    return f"{who} {meaning_of(class_).verb}"


def _lost_seconds(case: Case) -> float:
    """Return the time that failures cost the job, or the sum over its groups."""
    accounts = [case.account]
    if is_grouped(case.job):
        accounts = [account_of(group, (), case.now) for group in case.groups]
    return sum(lost_seconds(account) for account in accounts if account is not None)


def _cost(case: Case, count: int, lost: float) -> str:
    """Describe the number of failures, and the time that they cost; empty without any."""
    again = redone(case.account)
    if not count:
        return f"{again} trained again" if again else ""
    line = counted(count, "failure")
    if lost:
        recovers = case.account is not None and case.account.state in AFTER_A_FAILURE
        is_open = recovers and not report.is_finished(case.job) and not is_grouped(case.job)
        line += f", the earlier ones cost {loss(lost)}" if is_open else f" cost {loss(lost)}"
        if is_grouped(case.job):
            line += " of one group's time" + (" in all" if count > 1 else "")
    if again:
        line += f" and {again} trained again" if lost else f"; {again} trained again"
    if is_grouped(case.job) and lost and case.account is not None:
        stopped = lost_seconds(case.account)
        line += (
            f"; no group trained for {loss(stopped)} of it" if stopped else "; the other groups trained on"
        )
    return line


def people(case: Case) -> str:
    """Return how many of a job's workers or groups train; if none does, how many are active."""
    if is_grouped(case.job):
        return f"{len(training(case.job)):,} of {counted_by_thousands(group_count(case.job), 'group')}"
    counts = (case.status.get("replicaStatuses") or {}).get(names.WORKER)
    if counts is None:
        return counted(case.job["spec"]["replicaSpecs"].get(names.WORKER, {}).get("replicas", 0), "worker")
    trains = case.account is not None and case.account.state == JobState.TRAINING
    members = report.members_of(case.status.get("rendezvous") or {}) if trains else []
    return f"{len(members) or counts.get('active', 0):,} of {counts.get('desired', 0):,} workers"
