"""What to do about a job, as one pure function: from what was `Seen` to a `Plan`.

Everything that the job needs is decided here, from one view and at one moment; nothing is written. The order
in which a plan is carried out (`reconcilers/elasticjob.py`) is: what has to come first, the status, the acts.
Each act follows from what is published by then, so that whoever looks next, after a crash between any two
writes, plans what is left.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass, field, replace
from datetime import datetime

from controller.resources import ELASTICJOBS, ELASTICWORKERS, NODECHECKS, Object
from crds.elasticjob import ElasticJob, JobPhase, Rendezvous
from crds.elasticworker import ElasticWorker
from crds.nodecheck import NodeCheck
from reconcilers.account.ledger import with_account
from reconcilers.account.state import Moment, failed_at
from reconcilers.acts import Act, Event, Verb, create
from reconcilers.check.job_check import (
    Course,
    active_check,
    check_name,
    new_check,
    next_number,
    outdated,
    plan_world,
    waiting_since_the_check,
)
from reconcilers.check.job_check_report import CheckState, finding_of
from reconcilers.check.job_verdicts import Standing, standing_of
from reconcilers.failure.hardware_smell import suspected_at
from reconcilers.failure.memory import MemoryRoom
from reconcilers.failure.policy import Renewal, assess, given_up, spare_workers
from reconcilers.job import outcome
from reconcilers.job.outcome import Outcome, Training
from reconcilers.job.relaunch import RESUMED, Relaunch, plan_relaunches, suspended_pods
from reconcilers.job.run_policy import seconds_to_deadline, seconds_to_expiry
from reconcilers.job.seen import Seen
from reconcilers.job.status import has_succeeded, training_types
from reconcilers.job.workers import Slot, Workers, new_worker, plan_workers, slot_of
from reconcilers.scale import rolling
from reconcilers.scale.rolling import Freshness, Roll, freshness, plan_roll
from reconcilers.scale.uptake import take_up, with_moves_done, with_sources
from reconcilers.status_patch import merge_patch
from reconcilers.world.participants import bounds_of, participants_of
from reconcilers.world.slots import present_slots
from reconcilers.world.standby import standing_by, told_otherwise

MAX_CREATES = 100
"""ElasticWorkers in one look: others have a turn before the next, and the status tells how far it is."""
UNKNOWN_POD_RETRY_SECONDS = 1.0
"""Pods wake their worker, not its job."""


@dataclass(frozen=True)
class Plan:
    check: Act | None = None
    """The NodeCheck to make before anything else. If it is refused, plan again with `Seen.check_refused`."""
    first: tuple[Act, ...] = ()
    """To be done before the status is written, which no longer shows then that they are due."""
    status_patch: Object = field(default_factory=dict)
    """Of the job's status; empty if nothing has changed."""
    events: tuple[Event, ...] = ()
    """What the status comes to; told when it is written."""
    acts: tuple[Act, ...] = ()
    """To be done when the status is written."""
    look_again_seconds: float | None = None


@dataclass(frozen=True)
class _Look:
    seen: Seen
    job: ElasticJob
    """With what is asked of its scale in its status."""
    workers: Workers
    """But for those that are to go."""
    fresh: Freshness
    """Whose Pods have the resources that the job, as it is published, wants."""
    asked_anew: bool
    """Whether something was asked of its scale just now."""
    now: datetime

    @property
    def published(self) -> Rendezvous:
        return self.seen.published


def plan_job(seen: Seen, now: datetime) -> Plan:
    """All that is to be done about a job after this look."""
    phase = seen.job.status.phase
    if phase is not None and phase.finished:
        return _of_a_finished_job(seen, now)
    slots = plan_workers(seen.job, seen.workers, seen.published)
    workers = seen.workers.without({worker.metadata.uid for worker in slots.surplus})
    fresh = freshness(seen.job, workers, seen.pods)
    managed_fields = seen.raw["metadata"].get("managedFields") or ()
    uptake = take_up(seen.job, seen.plans, fresh, managed_fields, now)
    look = _Look(seen, uptake.job, workers, fresh, uptake.anew, now)
    if seen.job.spec.suspend:
        plan = _plan(look, outcome.suspended(look.job, workers, now))
    else:
        plan = _ended(look) or _train(look)
    missing = slots.missing[:MAX_CREATES]
    more = 0.0 if len(missing) < len(slots.missing) else None
    return replace(
        plan,
        events=(*outcome.of_scale(uptake), *plan.events),
        acts=(*_created(seen.job, missing), *map(_deleted, slots.surplus), *plan.acts),
        look_again_seconds=_soonest(
            plan.look_again_seconds,
            more,
            UNKNOWN_POD_RETRY_SECONDS if fresh.unknown else None,
        ),
    )


def _of_a_finished_job(seen: Seen, now: datetime) -> Plan:
    """Its counts follow its Pods, and it goes when its time is over."""
    remaining = seconds_to_expiry(seen.job, now)
    if remaining is not None and remaining <= 0:
        metadata = seen.job.metadata
        gone = Act(Verb.DELETE, ELASTICJOBS, metadata.name, metadata.namespace, uid=metadata.uid)
        return Plan(acts=(gone,))
    look = _Look(seen, seen.job, seen.workers, Freshness(), False, now)
    return _plan(look, outcome.unchanged(seen.job, seen.workers), look_again=(remaining,))


def _ended(look: _Look) -> Plan | None:
    """Of a job whose training is over, or whose time is."""
    job, workers, now = look.job, look.workers, look.now
    if has_succeeded(workers, look.published):
        end = JobPhase.SUCCEEDED, "TrainingSucceeded", "all workers finished"
        return _plan(look, outcome.finished(job, workers, *end, now))
    remaining = seconds_to_deadline(job, now)
    if remaining is not None and remaining <= 0:
        limit = job.spec.run_policy.active_deadline_seconds
        message = f"the job was active for longer than activeDeadlineSeconds {limit}"
        late = outcome.finished(job, workers, JobPhase.FAILED, "DeadlineExceeded", message, now)
        return _plan(look, late)
    return None


def _train(look: _Look) -> Plan:
    """Of a job that is to run: its world, and what its failures come to."""
    job, workers, published, now = look.job, look.workers, look.published, look.now
    checks, leaving = look.seen.checks, suspended_pods(job, workers)
    active = active_check(checks.of_job)
    suspected = suspected_at(job.status.suspected_at, workers, published, now)
    standing = standing_of(job, workers, checks, suspected, now)
    spare = spare_workers(job, workers)
    stopped = given_up(workers, spare)
    course, roll = _world(look, leaving, active, standing, stopped)
    job = with_sources(job, roll.sources) if roll.sources else job

    failures = assess(job, workers, spare, course.decision.breaks, published.round, now)
    broken_at = failed_at(course.decision, published.round, workers, now)
    if failures.ending is not None:
        return _plan(look, replace(outcome.failed(job, workers, failures, now), broken_at=broken_at))
    course = course.held(published, *failures.hold(now), now)
    check = None
    if course.check and look.seen.check_refused:
        course = course.without_check()
    elif course.check:
        name = check_name(job.metadata.name, next_number(job.metadata.name, checks.taken))
        check = create(NODECHECKS, new_check(job, name, course.check))

    world = course.decision.rendezvous
    renewals = dict.fromkeys(leaving, Renewal(RESUMED, avoids_node=False)) | dict(failures.renewals)
    relaunches, retry_seconds = _relaunches(look, job, world, standing, roll, renewals, stopped)
    pruned = [_pruned(old) for old in outdated(checks.of_job, checks.owned)]
    job, moved = with_moves_done(job, workers, world)
    state = CheckState(checks.of_job, active, look.seen.check_refused, standing.unchecked, course.left_out)
    training = Training(
        world=world,
        left_out=course.left_out,
        failures=failures,
        given_up=stopped,
        fresh=freshness(job, workers, look.seen.pods) if look.asked_anew else look.fresh,
        asked_anew=look.asked_anew,
        finding=finding_of(job, state),
        active_check=active,
        suspected_at=suspected,
        standing_by=standing_by(job, workers, world),
    )
    found = outcome.progress(job, workers, training, now)
    events = (
        *outcome.of_world(published, course.decision, failures.incident, workers),
        *outcome.of_moves(moved),
    )
    found = replace(found, events=(*events, *found.events), broken_at=broken_at)
    waits = course.decision.look_again_seconds, retry_seconds, seconds_to_deadline(job, now)
    acts = pruned if leaving else [*relaunches, *pruned]
    plan = _plan(replace(look, job=job), found, acts, waits)
    return replace(plan, check=check, first=tuple(relaunches) if leaving else ())


def _world(
    look: _Look,
    leaving: Collection[str],
    active: NodeCheck | None,
    standing: Standing,
    stopped: Mapping[str, str],
) -> tuple[Course, Roll]:
    """What is to become of the world, and of Pods that are outdated.

    Args:
        leaving: uids of workers whose Pods a suspension still has to end.
        stopped: by uid, the workers that are not started again.
    """
    job, workers, published = look.job, look.workers, look.published
    if job.status.active_check and active is None:
        published = waiting_since_the_check(published, look.now)
    staying, bounds, roll = workers.without(leaving), bounds_of(job), Roll()
    people = participants_of(job, staying, look.seen.ages)
    if active is None:
        without = standing.slow.union(w.spec.index for w in workers if w.metadata.uid in stopped)
        roll = plan_roll(job, workers, people, published, bounds, look.fresh, without)
    return plan_world(published, roll.marked(people), bounds, standing, active, look.now), roll


def _plan(
    look: _Look,
    found: Outcome,
    acts: Collection[Act] = (),
    look_again: Collection[float | None] = (),
) -> Plan:
    """With the account of the job's time in its status."""
    raw = look.seen.raw.get("status", {})
    moment = Moment(look.job, found.status, look.workers, look.now, found.checking, found.broken_at)
    status = with_account(moment, raw, look.seen.account_age_seconds)
    told = [_told_standby(w, found.standing_by) for w in told_otherwise(look.workers, found.standing_by)]
    return Plan(
        status_patch=merge_patch(raw, status.to_wire()),
        events=found.events,
        acts=(*acts, *told),
        look_again_seconds=_soonest(*look_again),
    )


def _soonest(*seconds: float | None) -> float | None:
    return min((max(each, 0.0) for each in seconds if each is not None), default=None)


# --- acts -------------------------------------------------------------------------------------------------


def _created(job: ElasticJob, missing: Collection[Slot]) -> Iterator[Act]:
    event = Event("Normal", "WorkersCreated", f"created {len(missing)} workers")
    for number, (type_, index) in enumerate(missing, start=1):
        yield create(ELASTICWORKERS, new_worker(job, type_, index), *[event] * (number == len(missing)))


def _deleted(worker: ElasticWorker) -> Act:
    metadata = worker.metadata
    return Act(Verb.DELETE, ELASTICWORKERS, metadata.name, metadata.namespace, uid=metadata.uid)


def _pruned(check: NodeCheck) -> Act:
    metadata = check.metadata
    return Act(Verb.DELETE, NODECHECKS, metadata.name, metadata.namespace, uid=metadata.uid)


def _told_standby(worker: ElasticWorker, standing: Collection[int]) -> Act:
    metadata, body = worker.metadata, {"status": {"standby": worker.spec.index in standing or None}}
    return Act(Verb.PATCH, ELASTICWORKERS, metadata.name, metadata.namespace, body, subresource="status")


def _relaunches(
    look: _Look,
    job: ElasticJob,
    world: Rendezvous,
    standing: Standing,
    roll: Roll,
    failed: Mapping[str, Renewal],
    stopped: Collection[str],
) -> tuple[list[Act], float | None]:
    """New incarnations of slots whose Pod has ended, has to leave its node, or is to be another.

    Returns:
        the acts, and the seconds until more are due.
    """
    present = {(type_, index) for type_ in training_types(job) for index in present_slots(job, type_)}
    wanted = [w for w in look.workers if slot_of(w) in present and w.metadata.uid not in stopped]
    renewed = {worker.metadata.uid: rolling.REASON for worker in roll.relaunches}
    renewed |= {uid: renewal.reason for uid, renewal in failed.items()}
    avoiding = {uid for uid, renewal in failed.items() if renewal.avoids_node}
    plan = plan_relaunches(wanted, world, look.now, standing, renewed, avoiding)
    short = {uid for uid, renewal in failed.items() if renewal.out_of_memory}
    room = MemoryRoom(job, look.workers, look.seen.nodes)
    acts = [_relaunched(r, room, r.worker.metadata.uid in short) for r in plan.relaunches]
    return acts, plan.look_again_seconds


def _relaunched(relaunch: Relaunch, room: MemoryRoom, out_of_memory: bool = False) -> Act:
    """The next incarnation of a slot; refused if the slot was changed since it was read."""
    worker, metadata = relaunch.worker, relaunch.worker.metadata
    spec: Object = {
        "incarnation": worker.spec.incarnation + 1,
        "excludedNodes": list(relaunch.excluded_nodes),
        "faultyNodes": list(relaunch.faulty_nodes),
    }
    message = f"{metadata.name} gets a new Pod, incarnation {spec['incarnation']}: {relaunch.reason}"
    events = [Event("Normal", "WorkerRelaunched", message)]
    raised = room.raised_memory(worker, in_place=out_of_memory)
    if raised is not None:
        spec["resources"] = raised.resources.to_wire()
        events.append(Event("Normal", "MemoryRaised", raised.message))
    body = {"metadata": {"resourceVersion": metadata.resource_version}, "spec": spec}
    return Act(Verb.PATCH, ELASTICWORKERS, metadata.name, metadata.namespace, body, events=tuple(events))
