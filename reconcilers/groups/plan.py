"""What to do about a job with replica groups, from what is seen of it and of its groups. Pure."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from controller.resources import Object
from crds import names
from crds.elasticjob import ElasticJob
from crds.grouping import group_name as group_name
from crds.job_status import MAX_MESSAGE, ElasticJobStatus, JobFailure, ReplicaStatus
from crds.model import ConditionStatus
from crds.phases import JobPhase, RendezvousPhase
from crds.replica_groups import MAX_GROUP_MESSAGE, GroupStatus, Membership, ReplicaGroups
from crds.texts import shortened
from reconcilers.conditions.life import FAILED, RUNNING, SUCCEEDED, SUSPENDED
from reconcilers.groups.membership import GroupView, decide
from reconcilers.observed.builder import owner_reference
from reconcilers.observed.conditions import observed_at, with_condition
from reconcilers.observed.run_policy import seconds_to_deadline
from reconcilers.observed.status_patch import validated_patch
from reconcilers.runtime.acts import Act, Event, Verb, create, deleted
from reconcilers.runtime.kinds import ELASTICJOBS

MOST_ACTS = 100
"""Groups that one look makes, changes or deletes at most."""


@dataclass(frozen=True)
class GroupsPlan:
    """What one look comes to. The status comes first, then the ElasticWorld, then the acts."""

    status_patch: Object
    acts: tuple[Act, ...] = ()
    events: tuple[Event, ...] = ()
    outdated: tuple[str, ...] = ()
    """Names of groups made of an earlier generation of the job; to compare them takes the whole job."""
    look_again_seconds: float | None = None


def plan_groups(
    job: ElasticJob, stored_status: Object, groups: Mapping[int, ElasticJob], now: datetime
) -> GroupsPlan:
    """Plan all that is to be done about a job with replica groups after this look.

    Args:
        stored_status: the job's, as it is stored.
        groups: the ElasticJobs that it owns, by index.
    """
    policy = _policy(job)
    count = job.spec.replica_specs[names.WORKER].replicas // policy.workers
    wanted = {index: groups[index] for index in range(count) if index in groups}
    views = [view_of(index, each) for index, each in sorted(wanted.items())]
    published = job.status.membership or Membership()
    end = _end_of(job, views, policy.min, count, now)
    membership = published if end else decide(published, views, policy.min)
    status = _status(job, wanted, views, membership, end, now)
    halted = job.spec.suspend or (status.phase is not None and status.phase.finished)
    surplus = [deleted(ELASTICJOBS, each.metadata) for index, each in groups.items() if index >= count]
    halting = [
        _halt(each, halted)
        for each in wanted.values()
        if each.spec.suspend != halted and not (each.status.phase and each.status.phase.finished)
    ]
    missing = () if halted else [index for index in range(count) if index not in groups]
    generation = str(job.metadata.generation)
    outdated = [
        each.metadata.name
        for each in wanted.values()
        if each.metadata.annotations.get(names.ANNOTATION_GROUPED_GENERATION) != generation
    ]
    deadline = seconds_to_deadline(job, now) if not end else None
    more = 0.0 if max(len(missing), len(surplus), len(outdated)) > MOST_ACTS else None
    waits = [wait for wait in (deadline, more) if wait is not None]
    return GroupsPlan(
        validated_patch(stored_status, status),
        (*surplus[:MOST_ACTS], *halting),
        _events(job, end),
        (*(group_name(job.metadata.name, index) for index in missing[:MOST_ACTS]), *outdated[:MOST_ACTS]),
        min(waits, default=None),
    )


def group_job(job: Object, index: int) -> Object:
    """Return the ElasticJob of a group.

    Args:
        job: the whole job, as it is stored.
    """
    metadata, spec = job["metadata"], job["spec"]
    policy = {key: value for key, value in spec["elasticPolicy"].items() if key != "replicaGroups"}
    worker = spec["replicaSpecs"][names.WORKER]
    worker = worker | {"replicas": spec["elasticPolicy"]["replicaGroups"]["workers"]}
    run = {
        key: value
        for key, value in (spec.get("runPolicy") or {}).items()
        if key not in ("ttlSecondsAfterFinished", "activeDeadlineSeconds")
    }
    return {
        "apiVersion": names.API_VERSION,
        "kind": ELASTICJOBS.kind,
        "metadata": {
            "name": group_name(metadata["name"], index),
            "namespace": metadata["namespace"],
            "labels": (metadata.get("labels") or {})
            | {
                names.LABEL_MANAGED_BY: names.MANAGER,
                names.LABEL_GROUPED_JOB: metadata["name"],
                names.LABEL_GROUP_INDEX: str(index),
            },
            "annotations": {names.ANNOTATION_GROUPED_GENERATION: str(metadata["generation"])},
            "ownerReferences": [owner_reference(ELASTICJOBS.kind, metadata["name"], metadata["uid"])],
        },
        "spec": spec
        | {
            "elasticPolicy": policy,
            "replicaSpecs": {names.WORKER: worker},
            "runPolicy": run,
        },
    }


def view_of(index: int, group: ElasticJob) -> GroupView:
    """Return what the membership depends on."""
    status = group.status
    world, part = status.rendezvous, status.replica_group
    return GroupView(
        index=index,
        phase=status.phase,
        round=world.round if world else 0,
        world=world.phase if world else RendezvousPhase.FORMING,
        broken_round=world.broken_round if world else 0,
        address=world.master_address if world else "",
        port=world.master_port if world else 0,
        ready_round=part.round if part is not None and part.ready else 0,
        version=part.version if part is not None else 0,
        broken_version=part.broken_version if part is not None else 0,
    )


def _policy(job: ElasticJob) -> ReplicaGroups:
    assert job.spec.elastic_policy.replica_groups is not None
    return job.spec.elastic_policy.replica_groups


@dataclass(frozen=True)
class _End:
    phase: JobPhase
    reason: str
    message: str


def _end_of(
    job: ElasticJob, views: Sequence[GroupView], minimum: int, count: int, now: datetime
) -> _End | None:
    """Return the end of the job. One that has ended stays so."""
    before = job.status
    if before.phase is not None and before.phase.finished:
        return _End(before.phase, before.reason, before.message)
    if job.spec.suspend:
        return None
    succeeded = [view.index for view in views if view.phase is JobPhase.SUCCEEDED]
    members = {(each.index, each.round) for each in (before.membership or Membership()).groups}
    still_train = any((view.index, view.round) in members and view.is_able for view in views)
    if succeeded and not still_train:
        return _End(JobPhase.SUCCEEDED, "TrainingSucceeded", "all groups that trained have finished")
    failed = [view.index for view in views if view.phase is JobPhase.FAILED]
    if failed and count - len(failed) < minimum:
        message = (
            f"{len(failed)} of {count} groups have failed for good and training needs {minimum}: see "
            f"{group_name(job.metadata.name, failed[0])}"
        )
        return _End(JobPhase.FAILED, "GroupsFailed", message)
    remaining = seconds_to_deadline(job, now)
    if remaining is not None and remaining <= 0:
        limit = job.spec.run_policy.active_deadline_seconds
        message = f"the job was active for longer than activeDeadlineSeconds {limit}"
        return _End(JobPhase.FAILED, "DeadlineExceeded", message)
    return None


def _status(
    job: ElasticJob,
    groups: Mapping[int, ElasticJob],
    views: Sequence[GroupView],
    membership: Membership,
    end: _End | None,
    now: datetime,
) -> ElasticJobStatus:
    before, each = job.status, list(groups.values())
    phase = end.phase if end else _phase(job, membership)
    has_ended = end is not None
    restarts = Counter[str]()
    for group in each:
        restarts.update(group.status.restarts)
    failures = [group.status.last_failure for group in each if group.status.last_failure is not None]
    message = end.message if end else _why(phase, membership, views, _policy(job).min)
    status = before.model_copy(
        update={
            "phase": phase,
            "reason": end.reason if end else "",
            "message": shortened(message, MAX_MESSAGE),
            "conditions": _conditions(job, phase, end, now),
            "membership": membership,
            "groups": [_group_status(view, groups[view.index]) for view in views],
            "replica_statuses": {names.WORKER: _replicas(job, each)},
            "replicas": sum(group.status.replicas or 0 for group in each),
            "selector": f"{names.LABEL_GROUPED_JOB}={job.metadata.name},{names.LABEL_TYPE}={names.WORKER}",
            "restarts": dict(restarts),
            "last_failure": max(failures, key=_time_of, default=before.last_failure),
            "start_time": before.start_time or (None if job.spec.suspend else now.replace(microsecond=0)),
            "completion_time": (before.completion_time or now.replace(microsecond=0)) if has_ended else None,
        }
    )
    return observed_at(status, job.metadata.generation)


def _time_of(failure: JobFailure) -> Any:
    return failure.time


def _phase(job: ElasticJob, membership: Membership) -> JobPhase:
    if job.spec.suspend:
        return JobPhase.SUSPENDED
    if membership.groups:
        return JobPhase.RUNNING
    return JobPhase.RESTARTING if membership.version else JobPhase.PENDING


def _why(phase: JobPhase, membership: Membership, views: Sequence[GroupView], minimum: int) -> str:
    if phase not in (JobPhase.PENDING, JobPhase.RESTARTING):
        return ""
    ready = sum(view.is_able for view in views)
    return f"{ready} of {len(views)} groups are ready to train, and training needs {minimum}"


def _group_status(view: GroupView, group: ElasticJob) -> GroupStatus:
    status = group.status
    message = ": ".join(filter(None, (status.reason, status.message)))
    return GroupStatus(
        index=view.index,
        phase=view.phase,
        round=view.round,
        version=view.version,
        restarts=sum(status.restarts.values()),
        message=shortened(message, MAX_GROUP_MESSAGE),
    )


def _replicas(job: ElasticJob, groups: Sequence[ElasticJob]) -> ReplicaStatus:
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


def _conditions(job: ElasticJob, phase: JobPhase, end: _End | None, now: datetime) -> list[Any]:
    def status(is_true: bool) -> ConditionStatus:
        return ConditionStatus.TRUE if is_true else ConditionStatus.FALSE

    conditions = list(job.status.conditions)
    is_running = phase is JobPhase.RUNNING
    conditions = with_condition(conditions, RUNNING, status(is_running), phase.value, "", now)
    if job.spec.suspend or any(each.type == SUSPENDED for each in conditions):
        reason = "Suspended" if job.spec.suspend else "Resumed"
        conditions = with_condition(conditions, SUSPENDED, status(job.spec.suspend), reason, "", now)
    if end is not None:
        type_ = SUCCEEDED if end.phase is JobPhase.SUCCEEDED else FAILED
        conditions = with_condition(conditions, type_, ConditionStatus.TRUE, end.reason, end.message, now)
    return conditions


def _events(job: ElasticJob, end: _End | None) -> tuple[Event, ...]:
    if end is None or job.status.phase is end.phase:
        return ()
    kind = "Normal" if end.phase is JobPhase.SUCCEEDED else "Warning"
    return (Event(kind, end.reason, end.message),)  # type: ignore[arg-type]


def _halt(group: ElasticJob, halted: bool) -> Act:
    metadata = group.metadata
    body: Object = {"spec": {"suspend": halted}}
    return Act(Verb.PATCH, ELASTICJOBS, metadata.name, metadata.namespace, body)


def made(job: Object, name: str) -> Act:
    """Return the write that makes a group.

    Args:
        job: the whole job.
        name: of the group.
    """
    return create(ELASTICJOBS, group_job(job, int(name.rpartition("-")[2])))
