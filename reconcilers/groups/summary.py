"""The status of a job with replica groups: counts, conditions, time accounting. Pure."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime

from controller.wording import counted
from crds import names
from crds.elasticjob import ElasticJob
from crds.job_status import MAX_MESSAGE, ElasticJobStatus, ReplicaStatus
from crds.model import MAX_CONDITION_MESSAGE, Condition, ConditionStatus
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
    suspension,
)
from reconcilers.conditions.scaled import SCALED
from reconcilers.failure.facts import failures_of
from reconcilers.findings.reasons import NODES_CHECKED
from reconcilers.groups.account import goodput_of, history_of
from reconcilers.groups.membership import GroupView
from reconcilers.groups.sums import named, nodes_checked, of_some, sums_of_warnings
from reconcilers.groups.warnings import late_groups, warnings_of
from reconcilers.observed.conditions import ConditionState, condition_of, is_false, observed_at, stated

TRUE, FALSE = ConditionStatus.TRUE, ConditionStatus.FALSE
LATE = "Late: the others waited for it in vain, and train without it until it comes to its next step"


@dataclass(frozen=True)
class JobEnd:
    """End of a job."""

    phase: JobPhase
    reason: str
    message: str


@dataclass(frozen=True)
class ObservedGroups:
    """A job with replica groups, and its existing groups."""

    job: ElasticJob
    count: int
    """Desired number of groups."""
    surplus: Sequence[int]
    """Indices of surplus groups."""
    jobs: Mapping[int, ElasticJob]
    """ElasticJobs of the desired groups, by index."""
    views: Sequence[GroupView]

    @property
    def policy(self) -> ReplicaGroups:
        """The division into groups."""
        policy = self.job.spec.elastic_policy.replica_groups
        assert policy is not None
        return policy


def status_of(
    groups: ObservedGroups,
    membership: Membership,
    end: JobEnd | None,
    now: datetime,
    refused: str | None = "",
) -> ElasticJobStatus:
    """Return the status after this look."""
    job, before, each = groups.job, groups.job.status, list(groups.jobs.values())
    phase, second = end.phase if end else _phase(job, membership), now.replace(microsecond=0)
    restarts = Counter[str]()
    for group in each:
        restarts.update(group.status.restarts)
    of_groups = (group.status.failures for group in each)
    totals, departed = failures_of(before.model_copy(update={"restarts": {}}), {}, of_groups, before.departed)
    failures = [group.status.last_failure for group in each if group.status.last_failure is not None]
    reason, message = (end.reason, end.message) if end else _why(groups, phase)
    counts = _replicas(job, each)
    late = set(late_groups(membership, groups.views))
    published = before.membership or Membership()
    own = [] if end else warnings_of(before.warnings, published, membership, groups.views, now, refused)
    status = before.model_copy(
        update={
            "phase": phase,
            "reason": reason,
            "message": shortened(message, MAX_MESSAGE),
            "conditions": _conditions(groups, phase, membership, end, counts, now),
            "warnings": [*own, *sums_of_warnings(groups.jobs)],
            "membership": membership,
            "groups": [
                _group_status(view, groups.jobs[view.index], is_late=view.index in late)
                for view in groups.views
            ],
            "replica_statuses": {names.WORKER: counts},
            "replicas": sum(group.status.replicas or 0 for group in each),
            "selector": f"{names.LABEL_GROUPED_JOB}={job.metadata.name},{names.LABEL_TYPE}={names.WORKER}",
            "restarts": dict(restarts),
            "failures": totals,
            "departed": departed,
            "last_failure": max(failures, key=lambda each: each.time, default=before.last_failure),
            "start_time": None if phase is JobPhase.SUSPENDED else before.start_time or second,
            "completion_time": (before.completion_time or second) if end else None,
            "goodput": goodput_of(job, each, phase, now),
            "history": history_of(job, groups.jobs, membership, phase, now),
        }
    )
    return observed_at(status, job.metadata.generation)


def _phase(job: ElasticJob, membership: Membership) -> JobPhase:
    if job.stops:
        return JobPhase.SUSPENDED
    if membership.groups:
        return JobPhase.RUNNING
    has_trained = job.status.phase in (JobPhase.RUNNING, JobPhase.RESTARTING)
    return JobPhase.RESTARTING if has_trained else JobPhase.PENDING


def _why(groups: ObservedGroups, phase: JobPhase) -> tuple[str, str]:
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


def _with_reason(groups: ObservedGroups) -> Iterator[ElasticJob]:
    """Yield the groups that have a reason why they do not train, in order."""
    return (group for _, group in sorted(groups.jobs.items()) if group.status.reason)


def _group_status(view: GroupView, group: ElasticJob, *, is_late: bool) -> GroupStatus:
    status = group.status
    message = ": ".join(filter(None, (status.reason, status.message)))
    if is_late:
        message = message or LATE
    return GroupStatus(
        index=view.index,
        uid=group.metadata.uid,
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
    groups: ObservedGroups,
    phase: JobPhase,
    membership: Membership,
    end: JobEnd | None,
    counts: ReplicaStatus,
    now: datetime,
) -> list[Condition]:
    """Return the conditions after this look, including those of other writers."""
    job = groups.job
    states = {
        RUNNING: ConditionState(TRUE if phase is JobPhase.RUNNING else FALSE, phase.value),
        WORLD_FORMED: _formed(groups, phase, membership),
        WORKERS_READY: _workers_ready(groups, phase, counts),
    }
    if (checked := nodes_checked(groups.jobs)) is not None:
        states[NODES_CHECKED] = checked
    if (size := _scaled(groups, phase, membership, counts)) is not None:
        states[SCALED] = size
    was_suspended = condition_of(job.status.conditions, SUSPENDED)
    if end is None and (state := suspension(was_suspended, job)) is not None:
        states[SUSPENDED] = state
    if end is not None:
        type_ = SUCCEEDED if end.phase is JobPhase.SUCCEEDED else FAILED
        states[type_] = ConditionState(TRUE, end.reason, end.message)
    before = {condition.type: condition for condition in job.status.conditions}
    after = {type_: stated(before.get(type_), type_, state, now) for type_, state in states.items()}
    return [*(before | after).values()]


def _formed(groups: ObservedGroups, phase: JobPhase, membership: Membership) -> ConditionState:
    if phase.finished:
        return ConditionState(FALSE, phase.value, ENDED)
    message = train_together(membership, groups.count)
    if membership.groups:
        return ConditionState(TRUE, RendezvousPhase.FORMED.value, message)
    reason = RendezvousPhase.REFORMING if membership.version else RendezvousPhase.FORMING
    return ConditionState(FALSE, reason.value, message)


def train_together(membership: Membership, count: int) -> str:
    """Return a sentence with the groups that train together."""
    members = [place.index for place in membership.groups]
    if not members:
        return f"none of {counted(count, 'group')} trains"
    others = sorted(set(range(count)).difference(members))
    verb = "train" if len(members) > 1 else "trains"
    return f"version {membership.version}: {named(members)} {verb}" + (
        f", without {as_ranges(others)}" if others else ""
    )


def _scaled(
    groups: ObservedGroups, phase: JobPhase, membership: Membership, counts: ReplicaStatus
) -> ConditionState | None:
    """Judge whether the job has the requested groups, each with the requested resources.

    The loss of a group does not make the condition False, since it is no request.

    Returns:
        None to leave the condition as it is; a job has none before the first request.
    """
    if phase.finished or phase is JobPhase.SUSPENDED:
        return None
    before = groups.job.status
    known = before.replica_statuses.get(names.WORKER)
    requested = known is not None and known.desired != counts.desired
    of_groups = {index: condition_of(each.status.conditions, SCALED) for index, each in groups.jobs.items()}
    unscaled = {index: each for index, each in of_groups.items() if each and each.status is FALSE}
    if not (requested or unscaled or is_false(before.conditions, SCALED)):
        return None
    together = {place.index for place in membership.groups}
    over = {view.index for view in groups.views if view.phase is not None and view.phase.finished}
    missing = [index for index in range(groups.count) if index not in together | over]
    parts = [f"{named(missing)} not training yet"] if missing else []
    parts += [f"{named(groups.surplus)} still to go"] if groups.surplus else []
    parts += [of_some({index: each.message for index, each in unscaled.items()})] if unscaled else []
    if parts:
        return ConditionState(FALSE, "Scaling", shortened("; ".join(parts), MAX_CONDITION_MESSAGE))
    return ConditionState(TRUE, "AsAsked")


def _workers_ready(groups: ObservedGroups, phase: JobPhase, counts: ReplicaStatus) -> ConditionState:
    if phase.finished or phase is JobPhase.SUSPENDED:
        return ConditionState(FALSE, phase.value)
    missing = counts.desired - counts.active - counts.succeeded
    if missing <= 0:
        return ConditionState(TRUE, "AllRunning")
    group = next(_with_reason(groups), None)
    message = f"{counted(missing, 'worker')} not running yet"
    if group is None:
        return ConditionState(FALSE, "Starting", message)
    return ConditionState(FALSE, group.status.reason[:64], f"{message}; see {group.metadata.name}")
