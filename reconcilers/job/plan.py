"""The plan of a job, by one pure function from an `ObservedJob` to a `JobPlan`.

Everything that the job needs is decided here, from one view and at one moment; nothing is written.
`reconciler.py` carries a plan out in this order: first acts, status, acts. Each act follows from what is
published by then, so that after a crash between any two writes the next reconcile plans the rest.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime

from controller.resources import Object
from crds.job_status import ElasticJobStatus
from crds.phases import JobPhase
from reconcilers.conditions import pods, reported
from reconcilers.conditions.life import why_stopped
from reconcilers.conditions.table import TABLE
from reconcilers.conditions.table import events as events_of_conditions
from reconcilers.failure import refusal
from reconcilers.failure.budgets import Overdrawn
from reconcilers.failure.endings import exhausted_workers, spare_workers
from reconcilers.failure.facts import with_departed
from reconcilers.failure.hangs import was_counted
from reconcilers.failure.policy import Assessment, assess
from reconcilers.goodput.goodput import with_comparable_steps
from reconcilers.goodput.ledger import Moment, failed_at, seconds_to_refresh, with_account
from reconcilers.goodput.lives import lived_on
from reconcilers.job import events as events_of_job
from reconcilers.job.published import seconds_to_write
from reconcilers.job.status import ended, going_on, has_succeeded, over, phase_of, suspended
from reconcilers.job.times import with_times_by_our_clock
from reconcilers.job.workers import (
    created,
    needs_standby_update,
    nodes_just_lost,
    relaunches_of,
    standby_updated,
    standing_by,
    suspended_pods,
)
from reconcilers.look import ConditionTable, DesiredJob, ObservedJob
from reconcilers.observed.conditions import failure_target
from reconcilers.observed.run_policy import (
    deadline_exceeded,
    seconds_to_deadline,
    seconds_to_expiry,
    seconds_to_sizing,
)
from reconcilers.observed.slots import as_granted
from reconcilers.observed.status_patch import patch_of, validated_patch
from reconcilers.observed.workers import plan_workers
from reconcilers.runtime.acts import Act, Event, deleted
from reconcilers.runtime.kinds import ELASTICJOBS, ELASTICWORKERS
from reconcilers.runtime.refused import RETRY_SECONDS
from reconcilers.scale.request import pending
from reconcilers.scale.rolling import Freshness, Roll, freshness, plan_roll
from reconcilers.scale.uptake import take_up, with_moves_done, with_sources, without_profile
from reconcilers.world.decision import Constraints, decide, resumed
from reconcilers.world.participants import (
    bounds_of,
    on_faulty_nodes,
    participants_of,
    with_extra,
)
from reconcilers.world.rendezvous import Assembly, Decision, dissolve
from reconcilers.world.reported_faults import marked, with_reported

MIN_ACTS = 100
ACT_LOOKS = 10
"""Reconciles in which a large job's workers are all made, relaunched or deleted: its status shows the
progress, other jobs have a turn, and no reconcile exceeds its time limit."""
STRANGERS_RETRY_SECONDS = 10.0
"""The deletion of an ElasticWorker that no job owns wakes no job."""
UNKNOWN_POD_RETRY_SECONDS = 1.0
"""Pods wake their worker, not its job."""


@dataclass(frozen=True)
class JobPlan:
    """Writes that one reconcile of a job makes, and when the next one is due."""

    request: Act | None = None
    """The check of workers to create before anything else. If it is refused, plan again with
    `ObservedJob.request_refused`."""
    first: tuple[Act, ...] = ()
    """Writes before the status, which no longer shows afterwards that they are due."""
    status_patch: Object = field(default_factory=dict)
    """The change of the job's status; empty if there is none."""
    events: tuple[Event, ...] = ()
    """Events to record when the status is written."""
    acts: tuple[Act, ...] = ()
    """Writes after the status."""
    look_again_seconds: float | None = None
    is_interim: bool = False
    """Whether more writes of `first` are due in further reconciles; until then nothing else is decided."""


def plan_job(seen: ObservedJob, now: datetime) -> JobPlan:
    """Plan everything that one reconcile does about a job that trains in a world."""
    seen = replace(seen, job=with_times_by_our_clock(seen.job, now))
    if seen.job.status.finished:
        return plan_finished(seen, now)
    look = without_surplus(wanted(seen, now))
    if seen.job.stops:
        plan = written(look, suspended(look, dissolve(look.published, why_stopped(seen.job))))
    else:
        plan = plan_end(look, _success(look)) or _train(look)
    return completed(plan, look)


def _success(look: DesiredJob) -> str:
    """Return how training has succeeded; empty if it has not."""
    if not has_succeeded(look.workers, look.published):
        return ""
    reports = (each.status.agent is not None or each.status.report_fault for each in look.workers)
    if look.published.round or any(reports):
        return "all workers finished"
    return (
        "all workers finished, each by itself: no agent of dlr reported, so there was no world and no step; "
        + reported.why_unheard(look.job)
    )


def completed(plan: JobPlan, look: DesiredJob, look_again_seconds: float | None = None) -> JobPlan:
    """Complete the plan with what is the same for all jobs: slots that come and go."""
    if plan.is_interim:
        return plan
    seen, now = look.seen, look.now
    most = most_acts(len(seen.workers) + len(look.missing))
    sizing_seconds = seconds_to_sizing(seen.job, now) if look.missing else None
    waits = look.is_held or sizing_seconds is not None or seen.workers_refused_seconds is not None
    missing = () if waits else look.missing[: min(most, seen.limit.remaining)]
    lost_nodes = nodes_just_lost(seen.workers, now) if missing else []
    surplus = [deleted(ELASTICWORKERS, worker.metadata) for worker in look.surplus[:most]]
    is_more = len(missing) == most < len(look.missing) or len(surplus) < len(look.surplus)
    more = 0.0 if is_more else None
    plan = replace(
        plan,
        events=(*events_of_job.of_scale(look), *plan.events),
        acts=(*created(seen.job, missing, lost_nodes), *surplus, *plan.acts),
        look_again_seconds=soonest(
            plan.look_again_seconds,
            look_again_seconds,
            more,
            sizing_seconds,
            seen.workers_refused_seconds,
            RETRY_SECONDS if len(look.missing) > seen.limit.remaining else None,
            STRANGERS_RETRY_SECONDS if seen.strangers else None,
            UNKNOWN_POD_RETRY_SECONDS if look.fresh.unknown else None,
            look.refusal.seconds_to_failure(look.job, now) if look.refusal is not None else None,
        ),
    )
    return _paced(seen, plan)


def most_acts(workers: int) -> int:
    """Return the most workers of a job that one reconcile makes, relaunches or deletes."""
    return max(MIN_ACTS, workers // ACT_LOOKS)


def wanted(seen: ObservedJob, now: datetime) -> DesiredJob:
    """Return the job with the requested scale, and its missing and surplus workers."""
    job = seen.job
    fresh = freshness(job, seen.workers, seen.pods) if pending(job) else Freshness()
    job, request, before = take_up(job, fresh, seen.managed_fields, now, seen.vacant, seen.workers)
    job = as_granted(job)
    missing, surplus = plan_workers(job, seen.workers, seen.job.status.world)
    missing = [slot for slot in missing if slot not in seen.taken]
    return DesiredJob(seen, job, seen.workers, now, request, before, missing, surplus)


def _paced(seen: ObservedJob, plan: JobPlan) -> JobPlan:
    """Put off a status that is only for people and was written a moment ago."""
    if plan.request or plan.first or plan.events or plan.acts:
        return plan
    wait = seconds_to_write(plan.status_patch, seen.raw.get("status") or {}, seen.status_age_seconds)
    if wait <= 0:
        return plan
    return replace(plan, status_patch={}, look_again_seconds=soonest(plan.look_again_seconds, wait))


def without_surplus(
    look: DesiredJob, fault: refusal.Fault | None = None, table: ConditionTable = TABLE
) -> DesiredJob:
    """Return the job without its surplus workers, and with a refusal of the others' Pods, if there is one.

    Args:
        fault: why the job's Pods cannot be made, for a reason that only its planner knows.
        table: the conditions and warnings of jobs of its kind.
    """
    seen, surplus = look.seen, look.surplus
    seen = replace(seen, workers=with_comparable_steps(seen.job, seen.workers))
    workers = seen.workers.without({worker.metadata.uid for worker in surplus})
    refused = refusal.judge(seen.job, workers, look.now, fault)
    return replace(
        look,
        seen=seen,
        job=with_departed(without_profile(look.job, refused), surplus),
        workers=workers,
        fresh=freshness(seen.job, workers, seen.pods),
        refusal=refused,
        table=table.beside(seen.kinds),
    )


def plan_finished(seen: ObservedJob, now: datetime) -> JobPlan:
    """Plan a finished job: its counts follow its Pods, and it is deleted when its time is over."""
    remaining = seconds_to_expiry(seen.job, now)
    if remaining is not None and remaining <= 0:
        return JobPlan(acts=(deleted(ELASTICJOBS, seen.job.metadata),))
    look = DesiredJob(seen, seen.job, seen.workers, now)
    return written(look, over(look), look_again=(remaining,))


def plan_end(look: DesiredJob, success: str) -> JobPlan | None:
    """Plan the end of a job whose training or time is over; return None if it goes on.

    Agents leave a suspended job with exit code 0, so these ends are no success when the job is resumed.

    Args:
        success: how training has succeeded; empty if it has not.
    """
    end = _end_of(look, success)
    return written(look, ended(look, *end)) if end is not None else None


def _end_of(look: DesiredJob, success: str) -> tuple[JobPhase, str, str] | None:
    """Return phase, reason and message of the end; None if the job goes on."""
    job, now = look.job, look.now
    if success and job.status.phase is not JobPhase.SUSPENDED:
        return JobPhase.SUCCEEDED, "TrainingSucceeded", success
    if (target := failure_target(job.status.conditions)) is not None:
        return JobPhase.FAILED, target.reason, target.message
    if look.refusal is not None and look.refusal.is_final(job, now):
        return JobPhase.FAILED, *look.refusal.ending
    if why := deadline_exceeded(job, now):
        return JobPhase.FAILED, "DeadlineExceeded", why
    return None


def _train(look: DesiredJob) -> JobPlan:
    """Plan a job that runs: its world, and the consequences of its failures."""
    look = with_standing(look, spare_workers(look.job, look.workers))
    standing = with_reported(
        look.standing, look.workers, look.published, bounds_of(look.job), look.seen.nodes
    )
    look = replace(look, standing=standing)
    workers, now = look.workers, look.now
    there, roll = _assembly(look)
    breaks = there.breaks
    if roll.sources:
        look = replace(look, job=with_sources(look.job, roll.sources, look.seen.vacant))
    broken_at = failed_at(breaks, look.published.round, workers, now)
    are_tested = look.seen.vetting.follows_failures(look.job)
    failures = assess(
        *(look.job, workers, look.spare, breaks, now),
        nodes=look.seen.nodes,
        is_asked=look.seen.hang_asked,
        are_tested=are_tested,
    )
    if (failed := plan_failure(look, failures, broken_at)) is not None:
        return failed
    decision = decide(there, _constraints(look, failures))
    request = look.seen.vetting.request(look.job, decision.to_vet) if decision.to_vet else None
    ready, bounds = there.ready, there.bounds
    due, retry_seconds = relaunches_of(look, decision.rendezvous, bounds, roll, failures.renewals, ready)
    waits = (
        decision.look_again_seconds,
        failures.seconds_to_judgement(now),
        reported.seconds_to_look(look.job),
        *waits_of_all(look),
    )
    plan = replace(_go_on(look, decision, failures, broken_at, waits), request=request)
    return relaunching(plan, look, due, retry_seconds)


def with_standing(look: DesiredJob, spare: Mapping[str, Overdrawn]) -> DesiredJob:
    """Return a running job with the standing of its workers.

    Args:
        spare: the workers that may fail for good, by uid.
    """
    return replace(
        look,
        spare=spare,
        exhausted_workers=exhausted_workers(look.workers, spare),
        leaving=suspended_pods(look.job, look.workers),
        standing=look.seen.vetting.standing(look.job, look.workers, look.now),
    )


def plan_failure(look: DesiredJob, failures: Assessment, broken_at: datetime | None = None) -> JobPlan | None:
    """Plan the end of a job by its failures; return None if it goes on.

    Args:
        broken_at: when the world failed that is abandoned now.
    """
    ending, events = failures.ending, tuple(events_of_job.of_culprit(failures.incident))
    if ending is None:
        return None
    end = ended(look, JobPhase.FAILED, ending.reason, ending.message, failures)
    return written(look, end, events=events, broken_at=broken_at)


def waits_of_all(look: DesiredJob) -> tuple[float | None, ...]:
    """Return the times until the next reconcile of any job that runs."""
    return (
        seconds_to_deadline(look.job, look.now),
        reported.seconds_to_notice(look.job, look.workers.reporting_steps, look.now),
        reported.seconds_to_hear(look.seen.unheard_seconds),
        pods.seconds_to_last(look.workers, look.now),
        seconds_to_refresh(look.job, look.now, look.seen.account_age_seconds),
    )


def relaunching(plan: JobPlan, look: DesiredJob, due: Sequence[Act], retry_seconds: float | None) -> JobPlan:
    """Return the plan with as many new incarnations as one reconcile makes.

    After a suspension, all of them come before anything else, because the new status will no longer show
    which Pods the suspension had to end.

    Args:
        retry_seconds: time until more of them are due.
    """
    relaunches = tuple(due[: most_acts(len(look.seen.workers))])
    is_more = len(relaunches) < len(due)
    if look.leaving and is_more:
        return JobPlan(first=relaunches, look_again_seconds=0.0, is_interim=True)
    again = soonest(plan.look_again_seconds, 0.0 if is_more else retry_seconds)
    if look.leaving:
        return replace(plan, first=relaunches, look_again_seconds=again)
    return replace(plan, acts=(*relaunches, *plan.acts), look_again_seconds=again)


def _assembly(look: DesiredJob) -> tuple[Assembly, Roll]:
    """Return the participants of the next world, and the Pods to make with new resources now."""
    job, workers, published = look.job, look.workers, look.published
    participants = participants_of(job, workers.without(look.leaving), look.seen.ages)
    bounds = with_extra(bounds_of(job), job, workers, published, participants)
    there, roll = Assembly(published, participants, bounds, look.now), Roll()
    if look.seen.vetting.claim is None and not look.is_refused:
        stopped = {w.spec.index for w in workers.exceptional if w.metadata.uid in look.exhausted_workers}
        roll = plan_roll(job, workers, there, look.fresh, look.standing.slow | stopped)
    if roll.leaving or look.standing.faulty or look.standing.leaving:
        staying = marked(roll.marked(participants), look.standing)
        there = replace(there, participants=on_faulty_nodes(staying, look.standing.faulty))
    return there, roll


def _constraints(look: DesiredJob, failures: Assessment) -> Constraints:
    claim = look.seen.vetting.claim
    return Constraints(
        slow=look.standing.slow,
        unvetted=look.standing.unvetted,
        claim=claim,
        claim_has_ended=bool(look.job.status.active_check) and claim is None,
        request_refused=bool(look.seen.request_refused),
        hold=failures.hold(look.now),
        hang_since=failures.hang_since,
        blame=failures.blame,
        resumed=resumed(look.published, look.workers),
    )


def _go_on(
    look: DesiredJob,
    decision: Decision,
    failures: Assessment,
    broken_at: datetime | None,
    waits: Collection[float | None],
) -> JobPlan:
    """Plan the status of a job that goes on, and its standby workers."""
    workers, world = look.workers, decision.rendezvous
    job, moved = with_moves_done(look.job, workers, world)
    look = replace(look, job=job, left_out=decision.left_out)
    standby = standing_by(job, workers, world)
    status = going_on(look, failures, phase_of(job, workers, world), world, len(standby))
    counted = was_counted(look.seen.job.status)
    events = (
        *events_of_job.of_world(look.published, decision, failures, workers, was_counted=counted),
        *events_of_job.of_resume(look.published, world, lived_on(world.round, workers)),
        *events_of_job.of_moves(moved),
    )
    return written(look, status, look.seen.vetting.leftovers(), waits, events, standby, broken_at)


def written(
    look: DesiredJob,
    status: ElasticJobStatus,
    acts: Collection[Act] = (),
    look_again: Collection[float | None] = (),
    events: Collection[Event] = (),
    standby: Collection[int] = (),
    broken_at: datetime | None = None,
) -> JobPlan:
    """Return the plan that writes this status, with the account of the job's time.

    Args:
        events: Events that do not follow from changed conditions.
        broken_at: when the world failed that is abandoned now.
    """
    raw, before = look.seen.raw.get("status", {}), look.seen.job.status
    moment = Moment(look.job, status, look.workers, look.now, broken_at)
    wire = status.to_wire()
    differs = bool(patch_of(raw, wire))
    after = with_account(moment, differs, look.seen.account_age_seconds)
    concerned = look.workers if standby else look.workers.exceptional
    due = needs_standby_update(concerned, standby)
    updates = [standby_updated(worker, standby) for worker in due[: most_acts(len(look.seen.workers))]]
    return JobPlan(
        status_patch=validated_patch(raw, after, wire if after is status else None)
        if differs or after is not status
        else {},
        events=(
            *events,
            *events_of_conditions(before, after, look.table),
            *events_of_job.of_phase(look, status),
        ),
        acts=(*acts, *updates),
        look_again_seconds=soonest(*look_again, 0.0 if len(updates) < len(due) else None),
    )


def soonest(*seconds: float | None) -> float | None:
    """Return the shortest of these times, none below 0; None if there is none."""
    return min((max(each, 0.0) for each in seconds if each is not None), default=None)
