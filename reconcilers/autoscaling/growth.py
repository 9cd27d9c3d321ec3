"""Growth into free room: observes a job's extra workers, and makes the request for the next step. Pure.

A probe raises the job's count, and its request has the number of needed workers (`base`): no world waits for
the others (`reconcilers/world/participants.py`). The state between two looks is `status.growth`.
"""

from __future__ import annotations

from dataclasses import replace
from datetime import datetime
from itertools import pairwise

from controller.wording import counted
from crds import names
from crds.agent_report import RoundProgress
from crds.elasticjob import ElasticJob
from crds.job_spec import Opportunistic
from crds.job_status import Goodput, GrowthStatus, JobState
from crds.phases import JobPhase
from crds.phases import RendezvousPhase as Phase
from crds.rendezvous import Rendezvous
from reconcilers.autoscaling.opportunity import Room, Step, next_step, reset_growth, with_base
from reconcilers.autoscaling.usage import is_known, marginal_efficiency, rates_of, sizes_of
from reconcilers.failure.incidents import in_one_line
from reconcilers.failure.meaning import meaning_of
from reconcilers.failure.refusal import PODS_NOT_ACCEPTED
from reconcilers.goodput.goodput import all_run, reported_rounds
from reconcilers.observed.conditions import warning_of
from reconcilers.observed.slots import base_of, opportunistic_policy
from reconcilers.observed.worker_state import REFUSALS, stuck_by
from reconcilers.observed.workers import Workers
from reconcilers.runtime.acts import Event
from reconcilers.scale.permission import own_write, refusal_of
from reconcilers.scale.request import MAX_REMOVED, Origin, RefusedRequest, ScaleWrite, own_request
from reconcilers.world.participants import Extra, checkpoint_seconds, extra_of, keeps_in_memory

GIVEN_BACK = "ExtraWorkersGivenBack"


Grown = tuple[GrowthStatus | None, ScaleWrite | None, float | None]
"""The next `status.growth`, the request to write into the job, and the seconds until the next look."""


def concerns(job: ElasticJob) -> bool:
    """Whether the job grows by itself, or has grown and may have extra workers left."""
    status = job.status
    has_left = status.growth is not None or base_of(job) is not None
    return not status.finished and (opportunistic_policy(job) is not None or has_left)


def grow(job: ElasticJob, workers: Workers, refused: RefusedRequest | None, now: datetime) -> Grown:
    """Decide whether the job grows, or gives workers back.

    Args:
        refused: the job's last refused request, as long as the refusal counts.
    """
    policy, scaling, base = opportunistic_policy(job), job.status.scaling, base_of(job)
    known = job.status.growth if policy is not None else None
    spec = job.spec.replica_specs.get(names.WORKER)
    if spec is None or scaling is None or scaling.replicas != spec.replicas:
        return known, None, None  # the job's next status triggers a look
    if policy is None or job.spec.suspend:
        if base is None or base >= spec.replicas:
            return known, None, None
        known = None if known is None else known.model_copy(update={"replicas": base})
        request = own_request(job, Origin.GROWTH, base, base=base)
        return known, *own_write(job, request, refused, (), _event_of_return(job, base), is_free=True)
    known = growth_of(job, policy, now)
    if base is None:  # comes before the first probe, so that its Pod is known to be extra
        request = own_request(job, Origin.GROWTH, base=known.base)
        return known, *own_write(job, request, refused, is_free=True)
    room = room_of(job, workers, refusal_of(refused, Origin.GROWTH), known, now)
    step = next_step(policy, known, room, now)
    write, wait = _write(job, workers, step, refused)
    if write is not None and write.refusal:
        step = next_step(policy, known, replace(room, refused=write.refusal), now)
        write, wait = _write(job, workers, step, refused)
    waits = [seconds for seconds in (step.look_again_seconds, wait) if seconds is not None]
    return step.known.model_copy(update={"replicas": step.count}), write, min(waits, default=None)


def _write(
    job: ElasticJob, workers: Workers, step: Step, refused: RefusedRequest | None
) -> tuple[ScaleWrite | None, float | None]:
    """The write of a step; or, if the same was refused, the seconds until it is repeated."""
    count = job.spec.replica_specs[names.WORKER].replicas
    if step.count == count:
        return None, None
    gone = going(job, workers, job.status.world, step.count) if step.count < count else ()
    removed = {names.WORKER: list(gone)} if gone else {}
    request = own_request(job, Origin.GROWTH, step.count, base=step.known.base, removed=removed)
    event = Event("Normal", GIVEN_BACK, step.message) if step.message else None
    return own_write(job, request, refused, (), event, is_free=step.count < count)


def growth_of(job: ElasticJob, policy: Opportunistic, now: datetime) -> GrowthStatus:
    """The stored state of growth, started over from a count that somebody else has set since."""
    known, scaling, base = job.status.growth, job.status.scaling, base_of(job)
    assert scaling is not None
    base = scaling.replicas if base is None else base
    if known is None:
        return GrowthStatus(base=base, replicas=scaling.replicas, asked_at=scaling.at)
    if scaling.by != Origin.GROWTH and scaling.at != known.asked_at:
        known = reset_growth(policy, known, scaling.replicas, base, now)
        return known.model_copy(update={"asked_at": scaling.at})
    return with_base(known, base, job.spec.elastic_policy.node_unit)


def going(job: ElasticJob, workers: Workers, published: Rendezvous, count: int) -> tuple[int, ...]:
    """The slots that go with a smaller count, those that do not train first.

    Empty if these are the highest slots, which a smaller count removes anyway, or too many for one request.
    But a lost slot is always named, so that the next probe does not get its name while its Pod is leaving, or
    on a dead node.
    """
    extra = extra_of(job, workers, published)
    slots = [index for kind in vars(extra).values() for index in sorted(kind, reverse=True)]
    number = job.spec.replica_specs[names.WORKER].replicas - count
    first, highest = sorted(slots[:number]), sorted(slots)[-number:]
    is_plain = first == highest and not extra.lost
    return () if is_plain or number > MAX_REMOVED else tuple(first)


def _event_of_return(job: ElasticJob, count: int) -> Event:
    """The Event of a job that gives back all extra workers, so that its queue need not grant them."""
    number = job.spec.replica_specs[names.WORKER].replicas - count
    why = "the job is suspended" if job.spec.suspend else "elasticPolicy.opportunistic is gone from the job"
    return Event("Normal", GIVEN_BACK, f"{counted(number, 'extra worker')} given back: {why}")


def room_of(job: ElasticJob, workers: Workers, refused: str, known: GrowthStatus, now: datetime) -> Room:
    """Observe the job's extra workers.

    Args:
        refused: why the last count requested by growth was refused; empty if it was not.
    """
    spec, published = job.spec.replica_specs[names.WORKER], job.status.world
    unit = job.spec.elastic_policy.node_unit
    extra = extra_of(job, workers, published)
    members = len(published.members) if published.phase is Phase.FORMED else 0
    rounds = reported_rounds(workers.reporting_steps, since=published.round)
    figures = next((each for each in rounds if each.round == published.round), None)
    rates = rates_of(job.status.usage, members, figures)
    admission = job.status.admission
    lacks_grant = admission is not None and admission.workers < spec.replicas
    there = spec.replicas - sum(map(len, vars(extra).values())) + len(extra.training)
    world, trained_seconds = _grown_world(job, extra, now)
    return Room(
        count=spec.replicas,
        most=(spec.max_replicas or spec.replicas) // unit * unit,
        unit=unit,
        requested_seconds=_requested_seconds(job, workers, extra, now),
        is_steady=0 < members == there and figures is not None and _is_quiet(job, workers),
        stuck=len(extra.stuck),
        pod_refused=_refused_pod(workers, extra),
        not_granted=admission.message if admission is not None and lacks_grant else "",
        cannot_be_granted=admission.message if admission is not None and admission.fixed else "",
        lost=len(extra.lost),
        exhausted=len(extra.exhausted),
        failed=_failed(job, known),
        on_their_way=len(extra.on_their_way),
        starting=len(extra.starting),
        starting_seconds=_starting_seconds(workers, extra, now),
        checkpoint_seconds=checkpoint_seconds(job),
        world=world,
        trained_seconds=trained_seconds,
        is_measured=is_known(rates.get(members)),
        efficiency=marginal_efficiency(rates, known.grown_from, members) if known.grown_from else None,
        restart_seconds=restart_seconds(job, workers, figures),
        refused=refused,
    )


def _grown_world(job: ElasticJob, extra: Extra, now: datetime) -> tuple[int, float]:
    """The size of the world, and the time for which it has had extra workers; those of the last world, if it
    lost some."""
    published, scaling, history = job.status.world, job.status.scaling, job.status.history
    world, members = len(published.members), set(published.members)
    if extra.lost and not extra.lost & members:  # the world goes on without them
        for episode, following in reversed(list(pairwise(history))):
            is_of_now = scaling is not None and following.since > scaling.at
            if is_of_now and episode.state is JobState.TRAINING and (episode.size or 0) > world:
                return episode.size or 0, (following.since - episode.since).total_seconds()
    has_extra = (published.phase is Phase.FORMED and extra.training) or extra.lost & members
    return world, (now - (published.formed_at or now)).total_seconds() if has_extra else 0.0


def _is_quiet(job: ElasticJob, workers: Workers) -> bool:
    """Whether the world trains, and no check, move, roll or failure is under way."""
    status = job.status
    return (
        status.phase is JobPhase.RUNNING
        and status.active_check is None
        and not status.migrations
        and warning_of(status.warnings, PODS_NOT_ACCEPTED) is None
        and all_run(status.world, workers)
    )


def _failed(job: ElasticJob, known: GrowthStatus) -> str:
    """The failure of training itself in a larger world since the count was set, as a message; empty if there
    is none."""
    status, failure, budget = job.status, job.status.last_failure, job.status.failure_budget
    if failure is None or failure.round is None or known.grown_from is None or status.scaling is None:
        return ""
    is_ours = failure.time > status.scaling.at and not meaning_of(failure.exit_class).free
    if not is_ours or (budget is not None and (budget.ignored or budget.consequences)):
        return ""
    grew = sizes_of(status.history).get(failure.round, 0) > known.grown_from
    return in_one_line(failure) if grew else ""


def _refused_pod(workers: Workers, extra: Extra) -> str:
    there = (workers.by_slot.get((names.WORKER, index)) for index in sorted(extra.stuck))
    found = (stuck_by(worker) for worker in there if worker is not None)
    return next((each.message for each in found if each is not None and each.reason in REFUSALS), "")


def _requested_seconds(job: ElasticJob, workers: Workers, extra: Extra, now: datetime) -> float:
    """The time since the count was set, or, if later, since the request of the newest Pod that does not
    train, as after a failure or a suspension."""
    assert job.status.scaling is not None
    since = [job.status.scaling.at]
    for index in extra.stuck | extra.on_their_way | extra.starting:
        worker = workers.by_slot.get((names.WORKER, index))
        if worker is None or not worker.status.history:
            continue
        is_seen = worker.status.observed_incarnation == worker.spec.incarnation
        since.append(worker.status.history[-1].created_at if is_seen else now)
    return (now - max(since)).total_seconds()


def _starting_seconds(workers: Workers, extra: Extra, now: datetime) -> float:
    starting = (workers.by_slot[names.WORKER, index] for index in extra.starting)
    since = (worker.status.history[-1].created_at for worker in starting if worker.status.history)
    return (now - min(since, default=now)).total_seconds()


def restart_seconds(job: ElasticJob, workers: Workers, figures: RoundProgress | None) -> float:
    """The cost of a growth: the pause, and repeated steps.

    If no checkpoint was ever reported, and none is kept in memory, all steps may have to be repeated.
    """
    pause = _pause_seconds(job.status.goodput)
    reports = (w.status.agent for w in workers.reporting_steps)
    signs = ((r.memory, r.departure, r.progress and r.progress.checkpoint_step) for r in reports if r)
    if keeps_in_memory(job) or any(each is not None for found in signs for each in found):
        return pause
    known = job.status.goodput
    lost = (known.stepping_seconds if known else 0.0) or (figures.stepping_seconds if figures else 0.0)
    return pause + lost


def _pause_seconds(known: Goodput | None) -> float:
    if known is None or not known.round:
        return 0.0
    lost = (JobState.FORMING.value, JobState.RECOVERING.value, JobState.REFORMING.value)
    return sum(known.seconds.get(state, 0.0) for state in lost) / known.round
