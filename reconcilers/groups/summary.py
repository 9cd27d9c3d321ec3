"""What the status of a job with replica groups says of them: counts, conditions, account of time. Pure."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime

from controller.wording import counted
from crds import names
from crds.elasticjob import ElasticJob
from crds.job_status import MAX_MESSAGE, ElasticJobStatus, Goodput, JobState, ReplicaStatus
from crds.model import Condition, ConditionStatus
from crds.phases import JobPhase, RendezvousPhase
from crds.ranges import as_ranges
from crds.replica_groups import MAX_GROUP_MESSAGE, GroupStatus, Membership, ReplicaGroups
from crds.texts import shortened
from reconcilers.conditions.life import (
    ENDED,
    FAILED,
    RUNNING,
    SUCCEEDED,
    SUSPENDED,
    WORKERS_READY,
    WORLD_FORMED,
)
from reconcilers.goodput.goodput import begun, effective_seconds, in_state, with_ratio
from reconcilers.groups.membership import GroupView
from reconcilers.groups.warnings import late_groups, warnings_of
from reconcilers.observed.conditions import State, condition_of, observed_at, stated

TRUE, FALSE = ConditionStatus.TRUE, ConditionStatus.FALSE
STATES = {
    JobPhase.PENDING: JobState.PENDING,
    JobPhase.RUNNING: JobState.TRAINING,
    JobPhase.RESTARTING: JobState.RECOVERING,
    JobPhase.SUSPENDED: JobState.SUSPENDED,
}
"""What the job's time goes to, by its phase."""
LATE = "Late: the others waited for it in vain, and train without it until it comes to its next step"


@dataclass(frozen=True)
class End:
    """End of a job."""

    phase: JobPhase
    reason: str
    message: str


@dataclass(frozen=True)
class Groups:
    """A job with replica groups, and those of its groups that it wants and has."""

    job: ElasticJob
    count: int
    """Number of groups that are wanted."""
    jobs: Mapping[int, ElasticJob]
    """Their ElasticJobs, by index."""
    views: Sequence[GroupView]

    @property
    def policy(self) -> ReplicaGroups:
        """The division into groups."""
        policy = self.job.spec.elastic_policy.replica_groups
        assert policy is not None
        return policy


def status_of(groups: Groups, membership: Membership, end: End | None, now: datetime) -> ElasticJobStatus:
    """Return the status that a look ends with.

    Args:
        end: that of the job, now or earlier.
    """
    job, before, each = groups.job, groups.job.status, list(groups.jobs.values())
    phase, second = end.phase if end else _phase(job, membership), now.replace(microsecond=0)
    restarts = Counter[str]()
    for group in each:
        restarts.update(group.status.restarts)
    failures = [group.status.last_failure for group in each if group.status.last_failure is not None]
    reason, message = (end.reason, end.message) if end else _why(groups, phase)
    counts = _replicas(job, each)
    late = set(late_groups(membership, groups.views))
    published = before.membership or Membership()
    status = before.model_copy(
        update={
            "phase": phase,
            "reason": reason,
            "message": shortened(message, MAX_MESSAGE),
            "conditions": _conditions(groups, phase, membership, end, counts, now),
            "warnings": [] if end else warnings_of(before.warnings, published, membership, groups.views, now),
            "membership": membership,
            "groups": [
                _group_status(view, groups.jobs[view.index], is_late=view.index in late)
                for view in groups.views
            ],
            "replica_statuses": {names.WORKER: counts},
            "replicas": sum(group.status.replicas or 0 for group in each),
            "selector": f"{names.LABEL_GROUPED_JOB}={job.metadata.name},{names.LABEL_TYPE}={names.WORKER}",
            "restarts": dict(restarts),
            "last_failure": max(failures, key=lambda each: each.time, default=before.last_failure),
            "start_time": None if phase is JobPhase.SUSPENDED else before.start_time or second,
            "completion_time": (before.completion_time or second) if end else None,
            "goodput": before.goodput if end else _goodput(groups, STATES[phase], now),
        }
    )
    return observed_at(status, job.metadata.generation)


def _phase(job: ElasticJob, membership: Membership) -> JobPhase:
    if job.spec.suspend:
        return JobPhase.SUSPENDED
    if membership.groups:
        return JobPhase.RUNNING
    return JobPhase.RESTARTING if membership.version else JobPhase.PENDING


def _why(groups: Groups, phase: JobPhase) -> tuple[str, str]:
    """Return why no group trains: the reason of the first group that has one, and how many are missing."""
    if phase not in (JobPhase.PENDING, JobPhase.RESTARTING):
        return "", ""
    ready = sum(view.is_able for view in groups.views)
    message = (
        f"{ready} of {counted(groups.count, 'group')} ready to train, and training needs {groups.policy.min}"
    )
    group = next(_with_reason(groups), None)
    if group is None:
        return "", message
    return group.status.reason, f"{message}; {group.metadata.name}: {group.status.message}"


def _with_reason(groups: Groups) -> Iterator[ElasticJob]:
    """Yields the groups that have a reason why they do not train, in their order."""
    return (group for _, group in sorted(groups.jobs.items()) if group.status.reason)


def _group_status(view: GroupView, group: ElasticJob, *, is_late: bool) -> GroupStatus:
    status = group.status
    message = ": ".join(filter(None, (status.reason, status.message)))
    if is_late:
        message = message or LATE
    return GroupStatus(
        index=view.index,
        phase=view.phase,
        round=view.round,
        version=view.version,
        restarts=sum(status.restarts.values()),
        message=shortened(message, MAX_GROUP_MESSAGE),
    )


def _replicas(job: ElasticJob, groups: Sequence[ElasticJob]) -> ReplicaStatus:
    """Return the counts of all groups' Pods."""
    statuses = [group.status.replica_statuses.get(names.WORKER) for group in groups]
    there = [status for status in statuses if status is not None]
    return ReplicaStatus(
        desired=job.spec.replica_specs[names.WORKER].replicas,
        pending=sum(status.pending for status in there),
        active=sum(status.active for status in there),
        succeeded=sum(status.succeeded for status in there),
        failed=sum(status.failed for status in there),
        standby=sum(status.standby for status in there),
    )


def _conditions(
    groups: Groups,
    phase: JobPhase,
    membership: Membership,
    end: End | None,
    counts: ReplicaStatus,
    now: datetime,
) -> list[Condition]:
    """Return the conditions after this look; those of other writers stay."""
    job = groups.job
    states = {
        RUNNING: State(TRUE if phase is JobPhase.RUNNING else FALSE, phase.value),
        WORLD_FORMED: _formed(groups, phase, membership),
        WORKERS_READY: _workers_ready(groups, phase, counts),
    }
    if job.spec.suspend and end is None:
        states[SUSPENDED] = State(TRUE, "Suspended")
    elif end is None and condition_of(job.status.conditions, SUSPENDED) is not None:
        states[SUSPENDED] = State(FALSE, "Resumed")
    if end is not None:
        type_ = SUCCEEDED if end.phase is JobPhase.SUCCEEDED else FAILED
        states[type_] = State(TRUE, end.reason, end.message)
    before = {condition.type: condition for condition in job.status.conditions}
    after = {type_: stated(before.get(type_), type_, state, now) for type_, state in states.items()}
    return [*(before | after).values()]


def _formed(groups: Groups, phase: JobPhase, membership: Membership) -> State:
    if phase.finished:
        return State(FALSE, phase.value, ENDED)
    message = train_together(membership, groups.count)
    if membership.groups:
        return State(TRUE, RendezvousPhase.FORMED.value, message)
    reason = RendezvousPhase.REFORMING if membership.version else RendezvousPhase.FORMING
    return State(FALSE, reason.value, message)


def train_together(membership: Membership, count: int) -> str:
    """Return in a sentence which of the groups train together."""
    members = [place.index for place in membership.groups]
    if not members:
        return f"none of {counted(count, 'group')} trains"
    others = as_ranges(sorted(set(range(count)).difference(members)))
    return f"version {membership.version}: groups {as_ranges(members)} train" + (
        f", without {others}" if others else ""
    )


def _workers_ready(groups: Groups, phase: JobPhase, counts: ReplicaStatus) -> State:
    if phase.finished or phase is JobPhase.SUSPENDED:
        return State(FALSE, phase.value)
    missing = counts.desired - counts.active - counts.succeeded
    if missing <= 0:
        return State(TRUE, "AllRunning")
    group = next(_with_reason(groups), None)
    message = f"{counted(missing, 'worker')} not running yet"
    if group is None:
        return State(FALSE, "Starting", message)
    return State(FALSE, group.status.reason[:64], f"{message}; see {group.metadata.name}")


def _goodput(groups: Groups, state: JobState, now: datetime) -> Goodput:
    """Return the account of the job's time, and of its steps by the accounts of its groups.

    Its steps are those of the group that got furthest, and their time is what the groups trained on an
    average: so the ratio is the share of the groups' time that was effective training. It changes with the
    groups' accounts.
    """
    before = groups.job.status.goodput or begun(groups.job, now)
    account = before if before.state is state else in_state(before, state, now)
    parts = [group.status.goodput for group in groups.jobs.values() if group.status.goodput is not None]
    first = min((part.first_step for part in parts if part.first_step is not None), default=None)
    last = max((part.last_step for part in parts if part.last_step is not None), default=None)
    if first is None or last is None:
        return account
    trained = sum(effective_seconds(part) or 0.0 for part in parts) / groups.count
    account = account.model_copy(
        update={
            "first_step": first,
            "last_step": last,
            "steps_redone": sum(part.steps_redone for part in parts),
            "steps_timed": last - first + 1,
            "stepping_seconds": round(trained, 6),
        }
    )
    return account if account == before else with_ratio(account, groups.job, now)
