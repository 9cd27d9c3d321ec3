"""What to do about a job, as one pure function: from what was `Seen` to a `Plan`.

Everything that the job needs is decided here, from one view and at one moment; nothing is written. The order
in which a plan is carried out (`reconciler.py`) is: what has to come first, the status, the acts.
Each act follows from what is published by then, so that whoever looks next, after a crash between any two
writes, plans what is left.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime

from controller.resources import Object
from crds import names
from crds.elasticworker import ElasticWorker
from crds.protocol import JobPhase
from crds.rendezvous import Rendezvous
from reconcilers.capacity import growth, profile, sizing
from reconcilers.capacity.usage import keeps_while_it_runs, with_roles, with_rounds
from reconcilers.conditions import edits, refusal
from reconcilers.conditions.job_finding import CheckState, finding_of
from reconcilers.conditions.steps_known import seconds_to_notice
from reconcilers.failure.hangs import was_counted
from reconcilers.failure.memory import MemoryRoom
from reconcilers.failure.policy import Assessment, Renewal, assess
from reconcilers.goodput.comparable import with_comparable_steps
from reconcilers.goodput.ledger import refresh_seconds, seconds_to_refresh, with_account
from reconcilers.goodput.state import Moment, failed_at
from reconcilers.job import outcome
from reconcilers.job.acts import created, relaunched, told_standby
from reconcilers.job.departed import with_departed
from reconcilers.job.look import Look
from reconcilers.job.outcome import Outcome, Training
from reconcilers.job.pace import seconds_to_tell
from reconcilers.job.relaunch import RESUMED, plan_relaunches
from reconcilers.job.scaling import giving_back, plan_scaling
from reconcilers.job.seen import Seen
from reconcilers.job.status import has_succeeded
from reconcilers.job.waiting import why_not_training
from reconcilers.observed.conditions import observed_at
from reconcilers.observed.draft import Draft
from reconcilers.observed.roles import in_cluster
from reconcilers.observed.run_policy import seconds_to_deadline, seconds_to_expiry
from reconcilers.observed.slots import present_slots, training_types
from reconcilers.observed.workers import WorkerPlan, plan_workers, slot_of
from reconcilers.roles import hot, tasks
from reconcilers.roles import progress as roles_progress
from reconcilers.runtime.acts import Act, Event, create, deleted
from reconcilers.runtime.kinds import ELASTICJOBS, ELASTICWORKERS, NODECHECKS
from reconcilers.scale import rolling
from reconcilers.scale.auto_plans import seconds_to_retry
from reconcilers.scale.rolling import Freshness, Roll, freshness, plan_roll
from reconcilers.scale.uptake import is_asked, take_up, with_moves_done, with_sources
from reconcilers.shards import job_shards
from reconcilers.shards.job_shards import with_shards
from reconcilers.world import resumption
from reconcilers.world.breaks import broken_members
from reconcilers.world.decision import ActiveCheck, Constraints, decide
from reconcilers.world.participants import Bounds, Participant, bounds_of, on_faulty_nodes, participants_of
from reconcilers.world.rendezvous import Decision
from reconcilers.world.standby import needs_standby_update, standing_by

MIN_ACTS = 100
ACT_LOOKS = 10
"""Looks in which a large job has all its workers made, relaunched or deleted: its status shows how far that
is, other jobs have a turn, and no look takes longer than a reconcile may."""
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
    is_interim: bool = False
    """More has to come `first`, in further looks; until then nothing else is decided."""


def plan_job(seen: Seen, now: datetime) -> Plan:
    """All that is to be done about a job after this look."""
    phase = seen.job.status.phase
    if phase is not None and phase.finished:
        return _of_a_finished_job(seen, now)
    slots = _slots(seen, now)
    served = tasks.still_served(seen.job, slots.surplus, seen.workers.of_type.get(names.CHIEF, ()), now)
    slots = replace(slots, surplus=tuple(w for w in slots.surplus if w.metadata.uid not in served.uids))
    seen, told = _with_news(seen, slots.surplus, now)
    workers = seen.workers.without({worker.metadata.uid for worker in slots.surplus})
    fresh = freshness(seen.job, workers, seen.pods)
    managed_fields = seen.raw["metadata"].get("managedFields") or ()
    uptake = take_up(seen.job, seen.plans, fresh, managed_fields, now, seen.vacant)
    beginning = profile.begun(uptake.job, seen.history, seen.plans, seen.has_begun, now, managed_fields)
    look = Look(seen, with_departed(beginning.job, slots.surplus), workers, fresh, uptake.anew, now)
    if seen.job.spec.suspend:
        wait = seconds_to_retry(seen.plans.spent, now)
        plan = _plan(
            look, outcome.suspended(look.job, workers, now), giving_back(look.job, seen, now), (wait,)
        )
    else:
        plan = _ended(look) or _train(look)
    if plan.is_interim:
        return plan
    most = most_acts(len(seen.workers) + len(slots.missing))
    waits = look.is_held or profile.is_waiting(look.job) or seen.workers_refused_seconds is not None
    missing = () if waits else slots.missing[:most]
    surplus = [deleted(ELASTICWORKERS, worker.metadata) for worker in slots.surplus[:most]]
    is_more = 0 < len(missing) < len(slots.missing) or len(surplus) < len(slots.surplus)
    more = 0.0 if is_more else None
    plan = replace(
        plan,
        events=(*told, *outcome.of_scale(uptake), *beginning.events, *plan.events),
        acts=(*beginning.acts, *created(seen.job, missing), *surplus, *plan.acts),
        look_again_seconds=_soonest(
            plan.look_again_seconds,
            more,
            seen.workers_refused_seconds,
            UNKNOWN_POD_RETRY_SECONDS if fresh.unknown else None,
            refusal.seconds_to_look(look.job, seen.has_begun),
            beginning.look_again_seconds,
            served.seconds,
            job_shards.seconds_to_lease(seen.job, seen.workers, seen.shards_age_seconds),
        ),
    )
    return _paced(seen, plan)


def most_acts(workers: int) -> int:
    """Workers of a job that one look makes at most, or relaunches, or deletes."""
    return max(MIN_ACTS, workers // ACT_LOOKS)


def _slots(seen: Seen, now: datetime) -> WorkerPlan:
    """Which workers there are to be. The count of a plan that removes some by name does not say which."""
    job = seen.job
    if is_asked(job, seen.plans):
        fresh = freshness(job, seen.workers, seen.pods)
        job = take_up(job, seen.plans, fresh, (), now, seen.vacant).job
    return plan_workers(job, seen.workers, seen.published)


def _paced(seen: Seen, plan: Plan) -> Plan:
    """Of a large job, without counts that were told a moment ago, if there is nothing else to be written."""
    if plan.check or plan.first or plan.events or plan.acts:
        return plan
    status, age_seconds = seen.raw.get("status", {}), seen.status_age_seconds
    wait = seconds_to_tell(status, plan.status_patch, len(seen.workers), age_seconds)
    if wait <= 0:
        return plan
    return replace(plan, status_patch={}, look_again_seconds=_soonest(plan.look_again_seconds, wait))


def _with_news(
    seen: Seen, surplus: Collection[ElasticWorker], now: datetime
) -> tuple[Seen, tuple[Event, ...]]:
    """With what was said of the job's Pods, if they were tried, and of edits that they do not have, and with
    steps that compare, and the next leases of its shard sets; and the Events that tell of it.

    Args:
        surplus: the workers that are to go, and what they have done of their leases with them.
    """
    tried = refusal.with_trial(seen.job, seen.trial, seen.has_begun, now)
    job = edits.with_edits(tried, seen.outdated_pods, len(seen.pods), now)
    if surplus or job_shards.seconds_to_lease(job, seen.workers, seen.shards_age_seconds) is None:
        job = with_shards(job, seen.workers, surplus, now)
    workers = with_comparable_steps(job, seen.workers)
    told = (*refusal.told(seen.job, job), *edits.told(seen.job, job), *job_shards.told(seen.job, job))
    return replace(seen, job=job, workers=workers), told


def _of_a_finished_job(seen: Seen, now: datetime) -> Plan:
    """Its counts follow its Pods, and it goes when its time is over."""
    remaining = seconds_to_expiry(seen.job, now)
    if remaining is not None and remaining <= 0:
        return Plan(acts=(deleted(ELASTICJOBS, seen.job.metadata),))
    look = Look(seen, seen.job, seen.workers, Freshness(), False, now)
    return _plan(look, outcome.over(seen.job, seen.workers, now), look_again=(remaining,))


def _ended(look: Look) -> Plan | None:
    """Of a job whose training is over, or whose time is.

    Agents leave a suspended job with exit code 0: the ends that its workers have when it is resumed say
    nothing.
    """
    job, workers, now = look.job, look.workers, look.now
    if job.status.phase is not JobPhase.SUSPENDED and (why := _success(look)):
        end = JobPhase.SUCCEEDED, "TrainingSucceeded", why
        return _plan(look, outcome.finished(job, workers, *end, now))
    if why := job_shards.ending(job):
        late = outcome.finished(job, workers, JobPhase.FAILED, job_shards.ENDED, why, now)
        return _plan(look, late)
    remaining = refusal.seconds_to_failure(job, now) if look.is_held else None
    if remaining is not None and remaining <= 0:
        return _plan(look, outcome.finished(job, workers, JobPhase.FAILED, *refusal.ending(job), now))
    remaining = seconds_to_deadline(job, now)
    if remaining is not None and remaining <= 0:
        limit = job.spec.run_policy.active_deadline_seconds
        message = f"the job was active for longer than activeDeadlineSeconds {limit}"
        late = outcome.finished(job, workers, JobPhase.FAILED, "DeadlineExceeded", message, now)
        return _plan(look, late)
    return None


def _success(look: Look) -> str:
    if in_cluster(look.job):
        return roles_progress.ending(look.job, look.workers)
    return "all workers finished" if has_succeeded(look.workers, look.published) else ""


def _train(look: Look) -> Plan:
    """Of a job that is to run: its world, and what its failures come to."""
    published, workers, now = look.published, look.workers, look.now
    people, bounds, roll = _people(look)
    breaks = broken_members(published, people)
    if roll.sources:
        look = replace(look, job=with_sources(look.job, roll.sources, look.seen.vacant))
    broken_at = failed_at(breaks, published.round, workers, now)
    failures = assess(look.job, workers, look.spare, breaks, now)
    if failures.ending is not None:
        return _plan(look, replace(outcome.failed(look.job, workers, failures, now), broken_at=broken_at))
    decision = Decision(published)
    if not in_cluster(look.job):
        decision = decide(published, people, bounds, now, _constraints(look, failures))
    check = (
        create(NODECHECKS, look.seen.checks.next_for(look.job, decision.check)) if decision.check else None
    )
    due, retry_seconds = _relaunches(look, decision.rendezvous, roll, failures.renewals)
    relaunches = due[: most_acts(len(look.seen.workers))]
    if len(relaunches) < len(due):
        retry_seconds = 0.0
        if look.leaving:
            return Plan(first=tuple(relaunches), look_again_seconds=0.0, is_interim=True)
    is_quiet = _is_quiet(look, decision, roll, failures)
    scaling = plan_scaling(look.job, workers, look.seen, now, is_quiet=is_quiet)
    look = replace(look, job=scaling.job)
    waits = (
        decision.look_again_seconds,
        retry_seconds,
        seconds_to_deadline(look.job, now),
        failures.seconds_to_judgement(now),
        seconds_to_notice(look.job, workers.telling_steps, now),
        seconds_to_refresh(look.job, now, look.seen.account_age_seconds),
        hot.seconds_to_look(look.job) if in_cluster(look.job) else None,
        *scaling.look_again_seconds,
    )
    plan = _go_on(look, decision, failures, broken_at, waits)
    if look.leaving:
        return replace(plan, check=check, first=tuple(relaunches))
    events, acts = (*plan.events, *scaling.events), (*relaunches, *scaling.acts, *plan.acts)
    return replace(plan, check=check, events=events, acts=acts)


def _is_quiet(look: Look, decision: Decision, roll: Roll, failures: Assessment) -> bool:
    """Whether no check, move, roll or failure is under way."""
    return (
        look.active_check is None
        and not decision.check
        and not decision.changes(look.published)
        and not (roll.sources or roll.relaunches or look.job.status.migrations)
        and failures.incident is None
        and not refusal.is_refused(look.job)
    )


def _people(look: Look) -> tuple[Sequence[Participant], Bounds, Roll]:
    """Who counts for the world, how large it may be, and which Pods are to be made of new resources now."""
    job, workers, published = look.job, look.workers, look.published
    is_refused = refusal.is_refused(job)  # then no next Pod could be made
    if in_cluster(job):
        bounds = bounds_of(job)
        roll = Roll() if is_refused else plan_roll(job, workers, (), published, bounds, look.fresh)
        return (), bounds, roll
    people = participants_of(job, workers.without(look.leaving), look.seen.ages)
    bounds, roll = growth.with_extra(bounds_of(job), job, workers, published, people), Roll()
    if look.active_check is None and not is_refused:
        stopped = {w.spec.index for w in workers.exceptional if w.metadata.uid in look.exhausted_workers}
        roll = plan_roll(job, workers, people, published, bounds, look.fresh, look.standing.slow | stopped)
    return on_faulty_nodes(roll.marked(people), look.standing.faulty), bounds, roll


def _constraints(look: Look, failures: Assessment) -> Constraints:
    active, workers = look.active_check, None
    if active is not None and active.spec.workers is not None:
        workers = frozenset(active.spec.workers)
    return Constraints(
        slow=look.standing.slow,
        unchecked=look.standing.unchecked,
        active_check=ActiveCheck(active.metadata.name, workers) if active is not None else None,
        check_has_ended=bool(look.job.status.active_check) and active is None,
        check_refused=bool(look.seen.check_refused),
        hold=failures.hold(look.now),
        hang_since=failures.hang_since,
        blame=failures.blame,
        resumed=resumption.resumed(look.published, look.workers),
    )


def _relaunches(
    look: Look, world: Rendezvous, roll: Roll, failed: Mapping[str, Renewal]
) -> tuple[list[Act], float | None]:
    """New incarnations of slots whose Pod has ended, has to leave its node, or is to be another.

    Returns:
        the acts, and the seconds until more are due.
    """
    job = look.job
    renewed = {worker.metadata.uid: rolling.REASON for worker in roll.relaunches}
    renewed |= dict.fromkeys(look.leaving, RESUMED)
    renewed |= {uid: renewal.reason for uid, renewal in failed.items()}
    avoiding = {uid for uid, renewal in failed.items() if renewal.avoids_node}
    concerned = look.workers if renewed or look.standing.faulty else look.workers.exceptional
    if not concerned:
        return [], None
    present = {(type_, index) for type_ in training_types(job) for index in present_slots(job, type_)}
    there = (worker for worker in concerned if slot_of(worker) in present)
    given_back = growth.taken_slots(job, look.workers)
    wanted = [
        worker
        for worker in there
        if worker.metadata.uid not in look.exhausted_workers and slot_of(worker) not in given_back
    ]
    plan = plan_relaunches(wanted, world, look.now, look.standing, renewed, avoiding)
    room = MemoryRoom(job, look.workers, look.seen.nodes)
    acts = [relaunched(r, room, failed.get(r.worker.metadata.uid)) for r in plan.relaunches]
    return acts, plan.look_again_seconds


def _go_on(
    look: Look,
    decision: Decision,
    failures: Assessment,
    broken_at: datetime | None,
    waits: Collection[float | None],
) -> Plan:
    """The status of a job that goes on, and what becomes of its standby and its old checks."""
    workers, checks = look.workers, look.seen.checks
    world = decision.rendezvous
    job, moved = with_moves_done(look.job, workers, world)
    cluster = None
    if in_cluster(job):
        cluster = tasks.dated(job.status.cluster, tasks.next_cluster(job, workers.by_slot), look.now)
    state = CheckState(
        checks.finished,
        look.active_check,
        look.seen.check_refused,
        look.standing.unchecked,
        decision.left_out,
    )
    training = Training(
        world=world,
        left_out=decision.left_out,
        failures=failures,
        exhausted_workers=look.exhausted_workers,
        fresh=freshness(job, workers, look.seen.pods) if look.scale_requested else look.fresh,
        scale_requested=look.scale_requested,
        finding=finding_of(job, state),
        active_check=look.active_check,
        suspected_at=look.suspected_at,
        standing_by=standing_by(job, workers, world),
        cluster=cluster,
        neighbours=look.seen.neighbours,
    )
    found = outcome.progress(job, workers, training, look.now)
    counted = was_counted(look.job.status)
    told = outcome.of_world(look.published, decision, failures, workers, was_counted=counted)
    resumed = resumption.told(look.published, world)
    versions = tasks.told(job.status.cluster, cluster) if cluster is not None else ()
    events = (*told, *resumed, *outcome.of_moves(moved), *versions, *found.events)
    acts = [deleted(NODECHECKS, old.metadata) for old in checks.outdated]
    found = replace(found, events=events, broken_at=broken_at)
    return _plan(replace(look, job=job), found, acts, waits)


def _plan(
    look: Look,
    found: Outcome,
    acts: Collection[Act] = (),
    look_again: Collection[float | None] = (),
) -> Plan:
    """With the account of the job's time in its status."""
    raw = look.seen.raw.get("status", {})
    status = observed_at(found.status, look.job.metadata.generation)
    why = why_not_training(status.phase, status.conditions, status.rendezvous)
    status = status.model_copy(update={"reason": why.reason, "message": why.message})
    moment = Moment(look.job, status, look.workers, look.now, found.checking, found.broken_at)
    draft = with_account(moment, Draft(status, raw, len(look.workers)), look.seen.account_age_seconds)
    draft = _with_usage(look, draft)
    standing = found.standing_by
    concerned = look.workers if standing else look.workers.exceptional
    due = needs_standby_update(concerned, standing)
    standby = [told_standby(worker, standing) for worker in due[: most_acts(len(look.seen.workers))]]
    return Plan(
        status_patch=draft.patch(),
        events=(*found.events, *sizing.told(look.job.status.conditions, draft.status.conditions)),
        acts=(*acts, *standby),
        look_again_seconds=_soonest(*look_again, 0.0 if len(standby) < len(due) else None),
    )


def _with_usage(look: Look, draft: Draft) -> Draft:
    """With what the job used, where the status is written anyway; or it is time to look, and a condition
    changes. Until then, it stays in the agents' reports."""
    phase, age_seconds = draft.status.phase, look.seen.account_age_seconds
    ends = phase is not None and (phase.finished or phase is JobPhase.SUSPENDED)
    is_kept = ends or keeps_while_it_runs(look.job, look.workers)
    if is_kept:
        draft = draft.of(with_rounds(draft.status, look.workers, look.published, ends=ends))
    is_due = age_seconds >= refresh_seconds(look.job, look.now)
    if not is_due and not draft.differs:
        return draft
    status = draft.status
    used = with_roles(look.job, status, look.workers)
    conditions = sizing.with_sizing(status.conditions, look.job, used.usage, look.now)
    judged = status.model_copy(update={"conditions": conditions})
    told = draft.of(observed_at(judged, look.job.metadata.generation))
    if not draft.differs and (conditions == status.conditions or not told.differs):
        return draft
    return told.having(usage=used.usage) if is_kept else told


def _soonest(*seconds: float | None) -> float | None:
    return min((max(each, 0.0) for each in seconds if each is not None), default=None)
