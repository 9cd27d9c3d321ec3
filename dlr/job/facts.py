"""The lines about a job that `dlr job status`, a diagnosis and the dashboard show. Pure."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from crds.grouping import is_grouped
from crds.job_status import JobState
from crds.phases import JobPhase
from dlr.job import report
from dlr.job.case import Case, Field, of_worker
from dlr.job.failures import by_cause, failures_of, job_failure_line
from dlr.job.goodput import goodput_line, time_by_state, time_line
from dlr.job.groups import group_line, groups_line
from dlr.job.progress import progress_line, shards_line
from dlr.job.wording import duration


@dataclass(frozen=True)
class Fact:
    label: str
    text: str
    fields: tuple[Field, ...]
    """The fields that it rests on; none where the absence of a field says it."""

    def __str__(self) -> str:
        return self.text if self.label in ("Phase", "Time", "Shards") else f"{self.label}: {self.text}"


SHOWN_ELSEWHERE = frozenset({*(phase.value for phase in JobPhase), "WorldFormed", "WorkersReady"})
"""Conditions that the facts of phase, world and workers and the warnings speak for."""


def remarks_of(case: Case) -> Iterator[Fact]:
    """Yield the warnings, and conditions that no other fact shows."""
    for each in report.warnings_of(case.job):
        text = ": ".join(filter(None, (each.get("reason"), each["message"])))
        yield Fact(each["type"], text, case.of_warning(each["type"]))
    for each in case.status.get("conditions") or ():
        if each.get("message") and each["type"] not in SHOWN_ELSEWHERE:
            text = f"{each['status']}, {each.get('reason')}: {each['message']}"
            yield Fact(each["type"], text, case.of_condition(each["type"]))
    if profile := case.status.get("profile"):
        yield Fact("Profile", f"{profile['outcome']}: {profile['message']}", case.of_job("status.profile"))


def facts_of(case: Case) -> Iterator[Fact]:
    job, status = case.job, case.status
    yield Fact("Phase", f"{report.phase_line(job, case.now)}{_state(case)}", _phase_fields(case))
    counts = "status.replicaStatuses" if status.get("replicaStatuses") else "spec.replicaSpecs"
    yield Fact("Workers", report.workers_line(job), case.of_job(counts))
    if is_grouped(job):
        membership = case.of_job("status.membership") if status.get("membership") else ()
        yield Fact("Groups", groups_line(job), membership)
    else:
        world = case.of_job("status.rendezvous") if status.get("rendezvous") else ()
        yield Fact("World", report.world_line(job, case.now), world)
    if group := group_line(job):
        part = "status.replicaGroup" if status.get("replicaGroup") else "metadata.ownerReferences"
        yield Fact("Group", group, case.of_job(part))
    if case.progress:
        line = progress_line(case.progress, is_finished=report.is_finished(job))
        yield Fact("Progress", line, tuple(case.of_progress()))
    if case.checkpoints:
        saving = next((worker for worker, each in case.reports if each.get("memory")), None)
        path = "status.agent.memory" if saving else "status.agent.progress"
        worker = saving or (case.telling[0][0] if case.telling else None)
        yield Fact("Checkpoints", case.checkpoints, of_worker(worker, path) if worker else ())
    if case.account:
        if line := goodput_line(case.account):
            yield Fact("Goodput", line, case.of_job("status.goodput"))
        if seconds := time_by_state(case.account, job, case.now):
            fields = case.of_job("status.goodput.seconds", "status.goodput.since")
            yield Fact("Time", time_line(seconds), fields)
    for each in case.shard_sets:
        yield Fact("Shards", shards_line(each), case.of_job(f"status.shards[{each.name}]"))
    if failures := by_cause(failures_of(job)):
        yield Fact("Failures", failures, case.of_job("status.failures"))
    if failure := status.get("lastFailure"):
        yield Fact("Last failure", job_failure_line(failure, case.now), case.of_job("status.lastFailure"))


def _state(case: Case) -> str:
    """The state that takes the job's time at present, unless the phase says it."""
    account, phase = case.account, report.phase(case.job)
    if account is None or report.is_finished(case.job) or account.state == phase:
        return ""
    until = " until the first step" if (phase, account.state) == ("Running", JobState.FORMING) else ""
    return f"; {account.state}{until} for {duration((case.now - account.since).total_seconds())}"


def _phase_fields(case: Case) -> tuple[Field, ...]:
    if not case.status.get("phase"):
        return case.of_job("metadata.creationTimestamp")
    ended = ["status.completionTime"] if case.status.get("completionTime") else []
    why = case.of_condition("Failed") if case.condition("Failed", "True") else ()
    return (*case.of_job("status.phase", *ended), *why)
