"""Opportunistic growth in a look at a job: what is seen of its extra workers, and what follows. Pure.

The world does not wait for an extra worker that finds no node, or whose Pod was taken: it goes on at once
with the others.
"""

from __future__ import annotations

from collections.abc import Container, Iterable
from dataclasses import dataclass, replace
from datetime import datetime

from controller.wording import counted
from crds import names
from crds.agent_report import RoundProgress
from crds.elasticjob import ElasticJob
from crds.elasticworker import ElasticWorker, WorkerPhase
from crds.job_status import Goodput, JobState, Opportunity
from crds.phases import RendezvousPhase as Phase
from crds.rendezvous import Rendezvous
from reconcilers.capacity.opportunity import Room, Step, begun_anew, next_step, within
from reconcilers.capacity.usage import marginal_efficiency, rates_of
from reconcilers.failure.meaning import meaning_of
from reconcilers.failure.policy import exhausted_workers, spare_workers
from reconcilers.goodput.rounds import reported_rounds
from reconcilers.observed.desired import DesiredJob
from reconcilers.observed.slots import Slot, extra_slots, opportunistic_policy, opportunity_of
from reconcilers.observed.worker_state import REFUSALS, stuck_by
from reconcilers.observed.workers import Workers, slot_of
from reconcilers.runtime.acts import Event
from reconcilers.scale.request import MAX_REMOVED, Origin
from reconcilers.scale.uptake import Uptake
from reconcilers.world.participants import Bounds, Participant

CHECKPOINT_SECONDS = 900.0
"""So long a growth waits for a checkpoint of a job that tells of them, where it does not say so itself."""
GIVEN_BACK = "ExtraWorkersGivenBack"


@dataclass(frozen=True)
class Extra:
    """The extra workers, by how they are."""

    stuck: frozenset[int] = frozenset()
    lost: frozenset[int] = frozenset()
    exhausted: frozenset[int] = frozenset()
    """Workers whose Pods have failed too often to get another."""
    on_their_way: frozenset[int] = frozenset()
    starting: frozenset[int] = frozenset()
    training: frozenset[int] = frozenset()
    """Members of the world, or of the last one while it is broken."""


def extra_of(job: ElasticJob, workers: Workers, published: Rendezvous) -> Extra:
    members = set(published.members) if published.phase is not Phase.FORMING else set()
    exhausted = exhausted_workers(workers, spare_workers(job, workers))
    found: dict[str, set[int]] = {}
    for index in extra_slots(job):
        kind = _kind(workers.by_slot.get((names.WORKER, index)), members, exhausted)
        found.setdefault(kind, set()).add(index)
    return Extra(**{kind: frozenset(indices) for kind, indices in found.items()})


def _kind(worker: ElasticWorker | None, members: Container[int], exhausted: Container[str]) -> str:
    if worker is None or worker.status.observed_incarnation != worker.spec.incarnation:
        return "on_their_way"
    if worker.metadata.uid in exhausted:
        return "exhausted"
    if was_taken(worker):
        return "lost"
    if stuck_by(worker) is not None:
        return "stuck"
    if worker.spec.index in members:
        return "training"
    has_node = worker.status.node_name or worker.status.phase is WorkerPhase.RUNNING
    return "starting" if has_node else "on_their_way"


def was_taken(worker: ElasticWorker) -> bool:
    end = worker.status.last_exit
    failed = worker.status.phase is WorkerPhase.FAILED
    is_current = end is not None and end.incarnation == worker.spec.incarnation
    return failed and end is not None and is_current and meaning_of(end.exit_class).taken


def taken_slots(job: ElasticJob, workers: Workers) -> frozenset[Slot]:
    """Extra workers whose room somebody else has: they get no other Pod, and their slots go."""
    there = (workers.by_slot.get((names.WORKER, index)) for index in extra_slots(job))
    return frozenset(slot_of(worker) for worker in there if worker is not None and was_taken(worker))


def with_extra(
    bounds: Bounds, job: ElasticJob, workers: Workers, published: Rendezvous, people: Iterable[Participant]
) -> Bounds:
    """The bounds of a world that does not wait for extra workers that find no node, are taken, or exhausted.

    Where checkpoints are told, and are not in memory, a growth waits for the next.
    """
    if opportunistic_policy(job) is None:
        return bounds
    extra, world = extra_of(job, workers, published), set(published.members)
    bounds = replace(
        bounds, desired=bounds.desired - len(extra.stuck) - len(extra.lost) - len(extra.exhausted)
    )
    tells = any(p.seconds_since_checkpoint is not None for p in people if p.index in world)
    return replace(bounds, grow_at_checkpoint_seconds=_checkpoint_seconds(job)) if tells else bounds


def _checkpoint_seconds(job: ElasticJob) -> float:
    """Returns the longest wait of a growth for a checkpoint, where any is told."""
    unsaid = 0.0 if keeps_in_memory(job) else CHECKPOINT_SECONDS
    return float(job.spec.elastic_policy.grow_at_checkpoint_seconds) or unsaid


def keeps_in_memory(job: ElasticJob) -> bool:
    return job.spec.replica_specs[names.WORKER].memory_checkpoint is not None


def grown(
    job: ElasticJob,
    workers: Workers,
    published: Rendezvous,
    refused: str,
    now: datetime,
    *,
    is_quiet: bool,
    failed: str,
) -> Step | None:
    """What opportunistic growth makes of this look; None of a job that does not grow by itself.

    Args:
        refused: why the last count that growth asked for cannot be; empty if it can.
        failed: how training failed in place in the published world, in the look that counts it.
    """
    policy, known = opportunistic_policy(job), opportunity_of(job)
    if policy is None or known is None:
        return None
    room = room_of(job, workers, published, refused, known, now, is_quiet, failed)
    return next_step(policy, known, room, now)


def with_base(before: ElasticJob, uptake: Uptake, now: datetime) -> Uptake:
    """Adds what growth remembers: whatever count somebody else asks for is what it begins from."""
    job, request, known = uptake.job, uptake.request, before.status.scaling
    scaling, policy = job.status.scaling, opportunistic_policy(job)
    if scaling is None:
        return uptake
    is_asked = uptake.count_changed_from is not None or (request is not None and request.asks_count)
    if request is not None and request.replicas.get(names.WORKER) != scaling.replicas:
        request = None  # an edit has followed it
    opportunity = scaling.opportunity
    if known is not None and is_asked and (request is None or request.origin is not Origin.GROWTH):
        base = request.base if request is not None and request.base is not None else scaling.replicas
        counts = known.replicas, scaling.replicas
        opportunity = begun_anew(policy, opportunity, *counts, base, now) if policy is not None else None
    elif policy is not None:
        opportunity = opportunity or Opportunity(base=scaling.replicas)
    elif opportunity is not None and (
        scaling.replicas <= opportunity.base or job.spec.elastic_policy.shard_scaling
    ):
        opportunity = None
    if opportunity is not None and policy is not None:
        opportunity = within(opportunity, *_least(job))
    if opportunity == scaling.opportunity:
        return uptake
    return replace(uptake, job=_remembering(job, opportunity))


def _least(job: ElasticJob) -> tuple[int, int]:
    """Returns the fewest workers that the job's count may be set to, and in how large steps."""
    return job.spec.replica_specs[names.WORKER].min_replicas or 0, job.spec.elastic_policy.node_unit


def _remembering(job: DesiredJob, opportunity: Opportunity | None) -> DesiredJob:
    assert job.status.scaling is not None
    return job.having(scaling=job.status.scaling.model_copy(update={"opportunity": opportunity}))


def to_give_back(job: ElasticJob) -> int | None:
    """The count of a job that keeps none of its extra workers, which is that it was asked for; None if it has
    none, or may keep them.

    It is not to grow any more, or is suspended: then a queue would ask for room for them.
    """
    known = job.status.scaling.opportunity if job.status.scaling is not None else None
    spec = job.spec.replica_specs.get(names.WORKER)
    if known is None or spec is None or (opportunistic_policy(job) is not None and not job.spec.suspend):
        return None
    asked = within(known, *_least(job)).base
    return asked if asked < spec.replicas else None


def going(job: ElasticJob, workers: Workers, published: Rendezvous, count: int) -> tuple[int, ...]:
    """The slots that go with a smaller count: those first of whom the job has nothing.

    Empty where these are the highest, which a smaller count takes anyway; and of more than one plan can name.
    But a slot that was taken is named in any case, so that the next probe does not get its name while its Pod
    is on its way out, or on a dead node.
    """
    extra = extra_of(job, workers, published)
    by_use = (extra.lost, extra.exhausted, extra.stuck, extra.on_their_way, extra.starting, extra.training)
    slots = [index for kind in by_use for index in sorted(kind, reverse=True)]
    number = job.spec.replica_specs[names.WORKER].replicas - count
    first, highest = sorted(slots[:number]), sorted(slots)[-number:]
    is_plain = first == highest and not extra.lost
    return () if is_plain or number > MAX_REMOVED else tuple(first)


def with_step(job: DesiredJob, step: Step) -> DesiredJob:
    """The job that remembers the step."""
    return _remembering(job, step.known)


def events(step: Step) -> tuple[Event, ...]:
    return (Event("Normal", GIVEN_BACK, step.message),) if step.message else ()


def events_of_return(job: ElasticJob, count: int) -> tuple[Event, ...]:
    """The Event of a job that gives back all that it grew by."""
    number = job.spec.replica_specs[names.WORKER].replicas - count
    why = "the job is suspended" if job.spec.suspend else "elasticPolicy.opportunistic is gone from the job"
    return (Event("Normal", GIVEN_BACK, f"{counted(number, 'extra worker')} given back: {why}"),)


def room_of(
    job: ElasticJob,
    workers: Workers,
    published: Rendezvous,
    refused: str,
    known: Opportunity,
    now: datetime,
    is_quiet: bool,
    failed: str,
) -> Room:
    spec, unit = job.spec.replica_specs[names.WORKER], job.spec.elastic_policy.node_unit
    extra = extra_of(job, workers, published)
    members = len(published.members) if published.phase is Phase.FORMED else 0
    told = reported_rounds(workers.telling_steps, since=published.round)
    figures = next((each for each in told if each.round == published.round), None)
    rates = rates_of(job.status.usage, members, figures)
    rate = rates.get(members)
    absent = (extra.stuck, extra.lost, extra.exhausted, extra.on_their_way, extra.starting)
    there = spec.replicas - sum(map(len, absent))
    formed = published.formed_at or now
    has_grown = bool(members and extra.training) or bool(extra.lost.intersection(published.members))
    return Room(
        count=spec.replicas,
        most=(spec.max_replicas or spec.replicas) // unit * unit,
        unit=unit,
        asked_seconds=_asked_seconds(job, workers, extra, now),
        is_steady=is_quiet and members > 0 and members == there and figures is not None,
        stuck=len(extra.stuck),
        pod_refused=_refused_pod(workers, extra),
        lost=len(extra.lost),
        exhausted=len(extra.exhausted),
        failed=failed,
        on_their_way=len(extra.on_their_way),
        starting=len(extra.starting),
        starting_seconds=_starting_seconds(workers, extra, now),
        checkpoint_seconds=_checkpoint_seconds(job),
        world=len(published.members),
        trained_seconds=(now - formed).total_seconds() if has_grown else 0.0,
        is_measured=rate is not None and rate.is_known,
        efficiency=marginal_efficiency(rates, known.grown_from, members) if known.grown_from else None,
        restart_seconds=restart_seconds(job, workers, figures),
        refused=refused,
    )


def _refused_pod(workers: Workers, extra: Extra) -> str:
    there = (workers.by_slot.get((names.WORKER, index)) for index in sorted(extra.stuck))
    found = (stuck_by(worker) for worker in there if worker is not None)
    return next((each.message for each in found if each is not None and each.reason in REFUSALS), "")


def _asked_seconds(job: ElasticJob, workers: Workers, extra: Extra, now: datetime) -> float:
    """Returns the seconds since the count was set, or since the newest Pod was requested of those that do not
    train, if that is later: after a failure, or a suspension."""
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
    """What a growth costs: the pause, and the steps that have to be made again, as far as is known.

    Where neither a checkpoint was ever told nor any is kept in memory, training might begin anew.
    """
    pause = _pause_seconds(job.status.goodput)
    reports = (w.status.agent for w in workers.telling_steps)
    saves = any(
        report is not None
        and (
            report.memory is not None
            or report.departure is not None
            or (report.progress is not None and report.progress.checkpoint_step is not None)
        )
        for report in reports
    )
    if saves or keeps_in_memory(job):
        return pause
    known = job.status.goodput
    lost = (known.stepping_seconds if known else 0.0) or (figures.stepping_seconds if figures else 0.0)
    return pause + lost


def _pause_seconds(known: Goodput | None) -> float:
    if known is None or not known.round:
        return 0.0
    lost = (JobState.FORMING.value, JobState.RECOVERING.value)
    return sum(known.seconds.get(state, 0.0) for state in lost) / known.round
