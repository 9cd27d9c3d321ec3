"""The lines about a job that `dlr job status`, a diagnosis and the dashboard show. Pure."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from crds.grouping import is_grouped
from crds.job_status import JobState
from crds.phases import JobPhase
from dlr.job import report
from dlr.job.case import Case
from dlr.job.failures import by_cause, failures_of, job_failure_line
from dlr.job.goodput import goodput_line, time_by_state, time_line
from dlr.job.groups import group_line, groups_line
from dlr.job.progress import JobProgress, progress_line, shards_line
from dlr.job.wording import duration, loss


@dataclass(frozen=True)
class Fact:
    label: str
    text: str

    def __str__(self) -> str:
        return self.text if self.label in ("Phase", "Time", "Shards") else f"{self.label}: {self.text}"


SHOWN_ELSEWHERE = frozenset({*(phase.value for phase in JobPhase), "WorldFormed", "WorkersReady"})
"""Conditions that other facts, or the warnings, show already."""


def remarks_of(case: Case) -> Iterator[Fact]:
    """Yield the warnings, and conditions that no other fact shows."""
    for each in report.warnings_of(case.job):
        yield Fact(each["type"], ": ".join(filter(None, (each.get("reason"), each["message"]))))
    for each in case.status.get("conditions") or ():
        if each.get("message") and each["type"] not in SHOWN_ELSEWHERE:
            yield Fact(each["type"], f"{each['status']}, {each.get('reason')}: {each['message']}")
    if profile := case.status.get("profile"):
        yield Fact("Profile", f"{profile['outcome']}: {profile['message']}")


def facts_of(case: Case) -> Iterator[Fact]:
    job = case.job
    yield Fact("Phase", f"{report.phase_line(job, case.now)}{_state(case)}")
    yield Fact("Workers", report.workers_line(job))
    if is_grouped(job):
        yield Fact("Groups", groups_line(job))
    else:
        yield Fact("World", report.world_line(job, case.now))
    if group := group_line(job):
        yield Fact("Group", group)
    if case.progress:
        yield Fact("Progress", _progress(case, case.progress))
    if case.checkpoints:
        yield Fact("Checkpoints", case.checkpoints)
    if case.account:
        if line := goodput_line(case.account):
            yield Fact("Goodput", line)
        if seconds := time_by_state(case.account, job, case.now):
            yield Fact("Time", time_line(seconds))
    for each in case.shard_sets:
        yield Fact("Shards", shards_line(each))
    if failures := by_cause(failures_of(job)):
        yield Fact("Failures", failures)
    if failure := case.status.get("lastFailure"):
        yield Fact("Last failure", job_failure_line(failure, case.now))
        if line := _survivors(case):
            yield Fact("Recovery", line)


def _progress(case: Case, progress: JobProgress) -> str:
    """Describe the progress; for a job with groups, which count their own steps, the furthest group's."""
    is_finished = report.is_finished(case.job)
    line = progress_line(progress, is_finished=is_finished)
    return f"{line}, in the furthest group that runs" if is_grouped(case.job) and not is_finished else line


def _survivors(case: Case) -> str:
    """Describe the processes that lived through the last failure, and the pause; empty without any."""
    last = case.life.failures[-1] if case.life and case.life.failures else None
    if last is None or not last.survivors:
        return ""
    trains = case.account is not None and case.account.state == JobState.TRAINING
    if last.outage is None or not trains:
        return last.survivors
    return f"{last.survivors}; next step after {loss(last.outage.seconds)}"


def _state(case: Case) -> str:
    """Return the job's goodput state, unless it equals the phase."""
    account, phase = case.account, report.phase(case.job)
    if account is None or report.is_finished(case.job) or account.state == phase:
        return ""
    until = " until the first step" if (phase, account.state) == ("Running", JobState.FORMING) else ""
    return f"; {account.state}{until} for {duration((case.now - account.since).total_seconds())}"
