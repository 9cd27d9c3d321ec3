"""The plan for a job with replica groups, from the job and its groups. Pure."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass
from datetime import datetime

from controller.resources import Object
from crds import names
from crds.elasticjob import ElasticJob
from crds.grouping import group_name
from crds.job_status import ElasticJobStatus
from crds.phases import JobPhase, RendezvousPhase
from crds.replica_groups import Membership, ReplicaGroupStatus
from reconcilers.conditions.life import why_stopped
from reconcilers.groups.children import is_outdated
from reconcilers.groups.membership import GroupView, decide
from reconcilers.groups.summary import JobEnd, ObservedGroups, status_of, train_together
from reconcilers.groups.warnings import WARNINGS
from reconcilers.observed.conditions import failure_target, warning_of
from reconcilers.observed.run_policy import deadline_exceeded, seconds_to_deadline
from reconcilers.observed.status_patch import validated_patch
from reconcilers.runtime.acts import Act, Event, RequestVerb, deleted
from reconcilers.runtime.kinds import ELASTICJOBS

MOST_ACTS = 100
"""Limit of groups that one look creates or changes, and of those that it deletes."""


@dataclass(frozen=True)
class GroupsPlan:
    """The writes of one look: the status first, then the ElasticWorld, then all others."""

    status_patch: Object
    refused: tuple[Act, ...] = ()
    """Withdrawals of requests that only a single group could carry out."""
    surplus: tuple[Act, ...] = ()
    """Deletions of groups, which the published membership has left out."""
    renewed: tuple[int, ...] = ()
    """Indices of groups to create or to change."""
    events: tuple[Event, ...] = ()
    look_again_seconds: float | None = None
    held_seconds: float | None = None
    """Time until missing groups are created, since the API server has just refused some; else None."""

    @property
    def is_for_people(self) -> bool:
        """Whether nothing but the status is written."""
        return not (self.refused or self.surplus or self.renewed or self.events)


def plan_groups(
    job: ElasticJob,
    stored_status: Object,
    groups: Mapping[int, ElasticJob],
    now: datetime,
    taken: Collection[int] = (),
    refused: str | None = "",
    refused_seconds: float | None = None,
) -> GroupsPlan:
    """Plan the writes of one look at a job with replica groups.

    Args:
        groups: the ElasticJobs that it owns, by index.
        taken: indices of groups whose names are taken by ElasticJobs that are being deleted.
        refused: why groups could not be created; None if none was tried yet.
        refused_seconds: time until the next try.
    """
    seen = _seen(job, groups)
    published = job.status.membership or Membership()
    end = _end_of(seen, published, now)
    membership = published if end else decide(published, seen.views, seen.policy.min)
    is_complete = len(seen.jobs) == seen.count
    status = status_of(seen, membership, end, now, refused or ("" if is_complete else refused))
    assert status.phase is not None
    halted = job.stops or status.phase.finished
    surplus = [deleted(ELASTICJOBS, groups[index].metadata) for index in seen.surplus]
    there = {*groups, *taken}
    missing = [] if halted else [index for index in range(seen.count) if index not in there]
    outdated = [
        index
        for index, each in seen.jobs.items()
        if not each.status.finished and is_outdated(job, index, each, halted)
    ]
    held_seconds = refused_seconds if missing else None
    renewed = [*(missing if held_seconds is None else ()), *outdated]
    is_more = len(renewed) > MOST_ACTS or len(surplus) > MOST_ACTS
    deadline = None if end or job.stops else seconds_to_deadline(job, now)
    waits = [wait for wait in (deadline, held_seconds, 0.0 if is_more else None) if wait is not None]
    return GroupsPlan(
        validated_patch(stored_status, status),
        tuple(_withdrawn(job)),
        tuple(surplus[:MOST_ACTS]),
        tuple(renewed[:MOST_ACTS]),
        tuple(_events(seen, published, status)),
        min(waits, default=None),
        held_seconds,
    )


def _seen(job: ElasticJob, groups: Mapping[int, ElasticJob]) -> ObservedGroups:
    count = job.group_count
    wanted = {index: groups[index] for index in range(count) if index in groups}
    surplus = [index for index in groups if index >= count]
    return ObservedGroups(
        job, count, surplus, wanted, [view_of(index, each) for index, each in wanted.items()]
    )


def _withdrawn(job: ElasticJob) -> Iterator[Act]:
    """Yield the write that removes a request for stacks from the job, which has no processes."""
    if names.ANNOTATION_STACKS in job.metadata.annotations:
        body = {"metadata": {"annotations": {names.ANNOTATION_STACKS: None}}}
        yield Act(RequestVerb.PATCH, ELASTICJOBS, job.metadata.name, job.metadata.namespace, body)


def view_of(index: int, group: ElasticJob) -> GroupView:
    """Return the parts of a group's status that the membership depends on."""
    status = group.status
    world, part = status.rendezvous, status.replica_group or ReplicaGroupStatus()
    return GroupView(
        index=index,
        phase=status.phase,
        round=world.round if world else 0,
        world=world.phase if world else RendezvousPhase.FORMING,
        broken_round=world.broken_round if world else 0,
        address=world.master_address if world else "",
        port=world.master_port if world else 0,
        ready_round=part.round if part.ready else 0,
        version=part.version,
        step=status.goodput.last_step if status.goodput else None,
        broken_version=part.broken_version,
        left_out_version=part.left_out_version,
        late_version=part.late_version,
        late_groups=frozenset(part.late_groups),
    )


def _end_of(seen: ObservedGroups, published: Membership, now: datetime) -> JobEnd | None:
    """Return the end of the job, which is final; None if it goes on."""
    job, before, views = seen.job, seen.job.status, seen.views
    if before.phase is not None and before.finished:
        return JobEnd(before.phase, before.reason, before.message)
    if job.stops:
        return None
    members = {(each.index, each.round) for each in published.groups}
    still_train = any((view.index, view.round) in members and view.is_able for view in views)
    if any(view.phase is JobPhase.SUCCEEDED for view in views) and not still_train:
        return JobEnd(JobPhase.SUCCEEDED, "TrainingSucceeded", "all groups that trained have finished")
    if (target := failure_target(before.conditions)) is not None:
        return JobEnd(JobPhase.FAILED, target.reason, target.message)
    failed = [view.index for view in views if view.phase is JobPhase.FAILED]
    if failed and seen.count - len(failed) < seen.policy.min:
        message = (
            f"{len(failed)} of {seen.count} groups have failed for good and training needs "
            f"{seen.policy.min}: see {group_name(job.metadata.name, failed[0])}"
        )
        return JobEnd(JobPhase.FAILED, "GroupsFailed", message)
    if why := deadline_exceeded(job, now):
        return JobEnd(JobPhase.FAILED, "DeadlineExceeded", why)
    return None


def _events(seen: ObservedGroups, published: Membership, status: ElasticJobStatus) -> Iterator[Event]:
    before, phase, metadata = seen.job.status, status.phase, seen.job.metadata
    if (name := names.ANNOTATION_STACKS) in metadata.annotations:
        one = group_name(metadata.name, 0)
        message = f"the job has no processes of its own: annotate one of its groups, as {one}, with {name}"
        yield Event("Warning", "RequestRefused", message)
    membership = status.membership or published
    if membership != published:
        there = {view.index for view in seen.views if view.phase is not JobPhase.SUCCEEDED}
        old, new = ({place.index for place in each.groups} for each in (published, membership))
        is_less = there & old - new and phase is not JobPhase.SUSPENDED
        message = train_together(membership, seen.count)
        yield Event("Warning" if is_less else "Normal", "GroupsChanged", message)
    for warning in status.warnings:
        is_own = warning.type in WARNINGS  # for all others, the groups have Events
        if is_own and warning_of(before.warnings, warning.type) is None:
            yield Event("Warning", warning.type, warning.message)
    if phase is before.phase or phase is None:
        return
    if phase.finished:
        yield Event("Normal" if phase is JobPhase.SUCCEEDED else "Warning", status.reason, status.message)
    elif phase is JobPhase.SUSPENDED and before.phase is not None:
        message = f"{why_stopped(seen.job)}: the Pods of its groups are being deleted"
        yield Event("Normal", "Suspended", message)
    elif before.phase is JobPhase.SUSPENDED and published.version:
        yield Event("Normal", "Resumed", "the job is resumed: the Pods of its groups are being created")
