"""A look at the shard sets of one job, as one pure function: from `ShardsSeen` to a `ShardsPlan`."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from datetime import datetime

from controller.resources import Object
from crds import names
from crds.elasticjob import ElasticJob
from crds.model import Condition, ConditionStatus
from reconcilers.observed.conditions import FAILURE_TARGET, ConditionState, condition_of, stated
from reconcilers.observed.status_patch import patch_of
from reconcilers.runtime.acts import Event
from reconcilers.scale.permission import own_write
from reconcilers.scale.request import Origin, RefusedRequest, ScaleWrite, own_request, pending
from reconcilers.shards import messages
from reconcilers.shards.by_shards import IdleWorker, expected_workers, holders_of, size_of
from reconcilers.shards.lease import lease
from reconcilers.shards.sets import Puller, SetState, ShardPullers, crew_of

SECONDS_PER_WORKER = 0.001
"""Time between two writes of leases for each worker that pulls, so a second for 1,000 of them. Agents request
leases early enough."""
LEAST_SECONDS = 0.05
"""Shortest pause between two writes that is kept."""


@dataclass(frozen=True)
class StoredSet:
    """A ShardSet as it is stored."""

    set_name: str
    uid: str
    status: Object
    state: SetState | None
    """The state in its status; None before its first status."""


@dataclass(frozen=True)
class ShardsSeen:
    job: ElasticJob
    sets: Sequence[StoredSet] = ()
    """The job's ShardSets in the order of their numbers."""
    pullers: Sequence[Puller] = ()
    """Workers whose agents have reported sets, of all the job's groups."""
    idle: Sequence[IdleWorker] = ()
    """Workers without a lease, if the job scales by shards."""
    age_seconds: float = float("inf")
    """Time since leases were last written."""
    scale_refused: RefusedRequest | None = None
    """The refused scale request, which is not repeated at once."""


@dataclass(frozen=True)
class SetWrite:
    """The next status of a set."""

    state: SetState
    stored: StoredSet | None
    """Its ShardSet; None for a set that has none yet."""

    @property
    def patch(self) -> Object:
        """The merge patch of the status."""
        return patch_of(self.stored.status if self.stored else {}, self.state.to_status().to_wire())


@dataclass(frozen=True)
class ShardsPlan:
    """The writes of one look, in their order."""

    sets: tuple[SetWrite, ...] = ()
    events: tuple[Event, ...] = ()
    conditions: tuple[Condition, ...] = ()
    """All conditions of the job, if one of them changes."""
    scale: ScaleWrite | None = None
    look_again_seconds: float | None = None


def plan_shards(seen: ShardsSeen, now: datetime) -> ShardsPlan:
    """Plan the writes of one look at a job's shard sets."""
    stored = tuple(each.state for each in seen.sets if each.state is not None)
    if seen.job.status.finished:
        return ShardsPlan(conditions=_conditions(seen.job, stored, now))
    crew = crew_of(seen.pullers, stored, _running(seen.job))
    wait = seconds_to_lease(seen)
    sets = stored if wait is not None else _dealt(seen, stored, crew, now)
    scale, scale_wait = _scaled(seen, sets, crew)
    waits = [each for each in (wait, scale_wait) if each is not None]
    return ShardsPlan(
        sets=tuple(_writes(seen, sets)),
        events=tuple(messages.events(stored, sets)),
        conditions=_conditions(seen.job, sets, now),
        scale=scale,
        look_again_seconds=min(waits, default=None),
    )


def seconds_to_lease(seen: ShardsSeen) -> float | None:
    """Return the time until leases may be written again, since each write goes to all agents that pull.

    Returns:
        None if they may be written now; so, too, when a worker goes, whose report is lost later.
    """
    wanted = len(seen.pullers) * SECONDS_PER_WORKER
    if wanted < LEAST_SECONDS or seen.age_seconds >= wanted:
        return None
    holders = {number for number, _ in holders_of(each.state for each in seen.sets if each.state is not None)}
    goes = any(each.goes and each.number in holders for each in seen.pullers)
    return None if goes else wanted - seen.age_seconds


def _dealt(
    seen: ShardsSeen, stored: tuple[SetState, ...], crew: ShardPullers, now: datetime
) -> tuple[SetState, ...]:
    """The sets after this look. A new set has a ShardSet already if an earlier look crashed after creating
    it."""
    members = max(crew.members, expected_workers(seen.job, stored, crew.reports))
    uids = {each.set_name: each.uid for each in seen.sets}
    sets = lease(stored, replace(crew, members=members), now)
    return tuple(replace(each, uid=uids.get(each.definition.name, "")) for each in sets)


def _running(job: ElasticJob) -> int:
    """Number of running workers, of all types, any of which may pull."""
    return sum(each.active for each in job.status.replica_statuses.values())


def _writes(seen: ShardsSeen, sets: Sequence[SetState]) -> Iterator[SetWrite]:
    stored = {each.set_name: each for each in seen.sets}
    for state in sets:
        found = stored.get(state.definition.name)
        if found is None or found.state != state:
            yield SetWrite(state, found)


def _conditions(job: ElasticJob, sets: Sequence[SetState], now: datetime) -> tuple[Condition, ...]:
    """The job's conditions after this look; empty if none changes."""
    states = dict[str, ConditionState]()
    if sets:
        states[messages.SHARDS_DONE] = messages.judge(sets, has_ended=job.status.finished)
    if not job.status.finished and (why := messages.ending(sets)):
        states[FAILURE_TARGET] = ConditionState(ConditionStatus.TRUE, messages.ENDED, why)
    before = job.status.conditions
    after = {each.type: each for each in before}
    for type_, state in states.items():
        found = condition_of(before, type_)
        if found is None or (found.status, found.reason, found.message) != (
            state.status,
            state.reason,
            state.message,
        ):
            generation = {"observed_generation": job.metadata.generation}
            after[type_] = stated(found, type_, state, now).model_copy(update=generation)
    found_after = tuple(after.values())
    return () if found_after == tuple(before) else found_after


def _scaled(
    seen: ShardsSeen, sets: Sequence[SetState], crew: ShardPullers
) -> tuple[ScaleWrite | None, float | None]:
    """The scale request to write into the job, and the time until the next may be due."""
    job = seen.job
    if job.spec.suspend or pending(job) is not None:
        return None, None
    sized = size_of(job, sets, crew.reports, seen.idle)
    if sized.replicas is None:
        return None, sized.look_again_seconds
    removed = {names.WORKER: list(sized.removed)} if sized.removed else {}
    request = own_request(job, Origin.SHARDS, sized.replicas, removed=removed)
    return own_write(job, request, seen.scale_refused)
