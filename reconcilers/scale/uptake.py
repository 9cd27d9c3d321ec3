"""The origin of a job's count, its ScalePlan, and what of the plan becomes desired state. Pure.

Counts arrive in the job's spec, whoever asks; everything else that a plan asks is taken over into the job's
status here, once, in the look that sees the plan's counts in the spec.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

from crds import names
from crds.elasticjob import ElasticJob
from crds.elasticworker import ElasticWorker, WorkerPhase
from crds.job_status import Opportunity, Scaling
from crds.protocol import RendezvousPhase
from crds.rendezvous import Rendezvous
from crds.scaleplan import ScalePlan, ScalePlanPhase
from reconcilers.observed.desired import DesiredJob
from reconcilers.observed.extra import policy_of
from reconcilers.observed.roles import in_cluster
from reconcilers.observed.slots import (
    Migration,
    Slots,
    migrations_of,
    slot_count,
    slots_of,
    training_types,
    with_slots,
)
from reconcilers.observed.worker_state import current_report
from reconcilers.runtime.clock import LONG_AGO
from reconcilers.scale.opportunity import begun_anew
from reconcilers.scale.plan import Intent, asked_base, intent_of, is_growth
from reconcilers.scale.plan_resources import laid_over
from reconcilers.scale.rolling import Freshness

Vacant = Mapping[str, frozenset[int]]
"""By type, retired slots of which nothing is left."""
NO_SLOTS: Vacant = {}

SPEC = "spec"
SCALE_SUBRESOURCE = "the scale subresource"
STILL_TO_COME = datetime.max.replace(tzinfo=UTC)
ACCEPTED = (ScalePlanPhase.CREATED, ScalePlanPhase.PENDING, ScalePlanPhase.SCALING)
"""Phases of a plan that has been looked at and has not finished."""


@dataclass(frozen=True)
class Plans:
    """A job's ScalePlans that matter."""

    newest: ScalePlan | None = None
    """The one to carry out."""
    named: ScalePlan | None = None
    """The one in the job's status, whatever became of it."""
    spent: tuple[ScalePlan, ...] = ()
    """Plans that the controller made and that have ended, but for `named`."""


@dataclass(frozen=True)
class Uptake:
    """What has become desired state."""

    job: DesiredJob
    """The job with the requested scale."""
    plan: ScalePlan | None = None
    """The plan that was taken over just now."""
    count_changed_from: int | None = None
    is_growth: bool = False
    """It is opportunistic growth, or what is given back of it, that was asked for."""

    @property
    def scale_requested(self) -> bool:
        """Whether something was requested just now."""
        return self.plan is not None or self.count_changed_from is not None


def age(plan: ScalePlan) -> tuple[datetime, datetime, str]:
    """The greater, the newer. Of those made within one second, who was looked at first is older."""
    created = plan.metadata.creation_timestamp or LONG_AGO
    return created, plan.status.create_time or STILL_TO_COME, plan.metadata.name


def newest(plans: Iterable[ScalePlan]) -> ScalePlan | None:
    """The one to carry out."""
    return max((plan for plan in plans if plan.status.phase in ACCEPTED), key=age, default=None)


def counts_moved(job: ElasticJob) -> bool:
    """Whether the spec wants another count than it did at the last look."""
    known = job.status.replica_statuses
    specs = job.spec.replica_specs
    return any(t in known and known[t].desired != specs[t].replicas for t in training_types(job))


def is_asked(job: ElasticJob, plans: Plans) -> bool:
    """Whether this look takes up a count or a plan, which may change whose slots are wanted."""
    return counts_moved(job) or _due(job, plans) is not None


def take_up(
    job: ElasticJob,
    plans: Plans,
    fresh: Freshness,
    managed_fields: Sequence[Mapping[str, Any]],
    now: datetime,
    vacant: Vacant = NO_SLOTS,
) -> Uptake:
    """The job's desired state after this look.

    Args:
        job: as read.
        plans: as new as what the job's spec tells.
        fresh: whose resources are outdated: moves of theirs go on whoever asks what.
        managed_fields: the job's, if the server keeps them.
        now: for `status.scaling`.
        vacant: slots that may be used again.
    """
    plan, due = plans.newest, _due(job, plans)
    after = DesiredJob.of(job)
    if due is not None:
        after = _with_plan(after, due, fresh, vacant)
    slots = {
        type_: _adjusted(after, type_, vacant.get(type_, frozenset())) for type_ in training_types(after)
    }
    after = with_slots(after, slots)
    scaling = _scaling(job, plans.named, due, managed_fields, now)
    before = _count_before(job)
    changed = before is not None and scaling is not None and before != scaling.replicas
    after = after.having(scale_plan=plan.metadata.name if plan is not None else None, scaling=scaling)
    grows = is_growth(due) if due is not None else changed and _is_by_growth(plans.named, scaling)
    return Uptake(after, due, before if changed else None, grows)


def in_words(intent: Intent) -> str:
    """What a plan comes to, for people."""
    parts = [f"{count} of type {type_}" for type_, count in sorted(intent.replicas.items())]
    for verb, slots in (("without", intent.removed), ("moving", intent.moved)):
        parts += [
            f"{verb} {type_} {', '.join(map(str, sorted(indices)))}"
            for type_, indices in sorted(slots.items())
        ]
    for type_, asked in sorted(intent.resources.items()):
        amounts = {**asked.requests, **asked.limits}
        said = ", ".join(f"{name} {amount}" for name, amount in sorted(amounts.items()))
        parts.append(f"{said} for each of type {type_}")
    return "; ".join(parts)


def with_sources(job: DesiredJob, sources: frozenset[int], vacant: Vacant = NO_SLOTS) -> DesiredJob:
    """Training workers in whose place others are to come, beside those that are known."""
    slots, count = slots_of(job, names.WORKER), slot_count(job.spec.replica_specs[names.WORKER])
    moving = slots.moving({*slots.moves, *sources}, count, vacant.get(names.WORKER, frozenset()))
    return with_slots(job, {names.WORKER: moving})


def with_moves_done(
    job: DesiredJob, workers: Sequence[ElasticWorker], rendezvous: Rendezvous
) -> tuple[DesiredJob, list[Migration]]:
    """The job after the moves that this world completes, and those; without one, a running target does."""
    moves = migrations_of(job)
    if not moves:
        return job, []
    by_slot = {(w.spec.type, w.spec.index): w for w in workers}
    members = set(rendezvous.members) if rendezvous.phase is RendezvousPhase.FORMED else set()
    done: list[Migration] = []
    changed: dict[str, Slots] = {}
    for move in moves:
        source, target = by_slot.get((move.type, move.source)), by_slot.get((move.type, move.target))
        if target is None:
            continue
        if not in_cluster(job) and _is_in_worlds(rendezvous, source, target):
            in_place = move.target in members or _stands_by(job, target, members)
            complete = in_place and move.source not in members
        else:
            complete = _runs(target)
        if complete:
            done.append(move)
            changed[move.type] = changed.get(move.type, slots_of(job, move.type)).moved(move.source)
    return with_slots(job, changed) if done else job, done


def asked_through_scale(managed_fields: Sequence[Mapping[str, Any]]) -> bool:
    """Whether the worker count was last written through the scale subresource."""
    writers = [entry for entry in managed_fields if wrote_count(entry)]
    last = max(writers, key=lambda entry: str(entry.get("time", "")), default=None)
    return last is not None and last.get("subresource") == "scale"


def _due(job: ElasticJob, plans: Plans) -> ScalePlan | None:
    """The newest plan, if it is to be taken over now."""
    plan = plans.newest
    return plan if plan is not None and _is_due(job, plan) else None


def _is_due(job: ElasticJob, plan: ScalePlan) -> bool:
    status, specs = plan.status, job.spec.replica_specs
    return (
        status.phase is ScalePlanPhase.SCALING
        and job.status.scale_plan == plan.metadata.name
        and job.status.scale_plan_uid != plan.metadata.uid
        and all(t in specs and specs[t].replicas == count for t, count in status.replicas.items())
    )


def _with_plan(job: DesiredJob, plan: ScalePlan, fresh: Freshness, vacant: Vacant) -> DesiredJob:
    intent = intent_of(plan, job)
    slots = {}
    for type_ in training_types(job):
        count = slot_count(job.spec.replica_specs[type_])
        before = slots_of(job, type_).without(intent.removed.get(type_, ()), count)
        sources = {*intent.moved.get(type_, ()), *fresh.of(type_).intersection(before.moves)}
        slots[type_] = before.moving(sources, count, vacant.get(type_, frozenset()))
    resources = dict(job.status.resources)
    for type_, asked in intent.resources.items():
        resources[type_] = laid_over(resources.get(type_), asked)
    return with_slots(job.having(resources=resources, scale_plan_uid=plan.metadata.uid), slots)


def _adjusted(job: ElasticJob, type_: str, vacant: frozenset[int]) -> Slots:
    """To the count of now. A job that is suspended loses all its Pods: there is nothing to move."""
    spec, known = job.spec.replica_specs[type_], job.status.replica_statuses.get(type_)
    count = slot_count(spec)
    by = count - slot_count(spec, known.desired) if known is not None else 0
    slots = slots_of(job, type_).grown(by, count, vacant)
    return slots.moving(() if job.spec.suspend else slots.moves, count, vacant)


def _count_before(job: ElasticJob) -> int | None:
    if job.status.scaling is not None:
        return job.status.scaling.replicas
    known = job.status.replica_statuses.get(names.WORKER)
    return known.desired if known is not None else None


def _scaling(
    job: ElasticJob,
    plan: ScalePlan | None,
    due: ScalePlan | None,
    managed_fields: Sequence[Mapping[str, Any]],
    now: datetime,
) -> Scaling | None:
    """Returns the scaling: the count and its origin.

    Args:
        plan: that the job carries out.
        due: that is taken over just now. It may ask for the very count that growth has come to before.
    """
    worker, known = job.spec.replica_specs.get(names.WORKER), job.status.scaling
    is_asked = due is not None and _asks_count(due)
    if worker is None or (known is not None and known.replicas == worker.replicas and not is_asked):
        return _with_opportunity(job, known)
    by, is_by_growth = SPEC, False
    if plan is not None and plan.status.replicas.get(names.WORKER) == worker.replicas:
        by, is_by_growth = f"ScalePlan {plan.metadata.name}", is_growth(plan)
    elif asked_through_scale(managed_fields):
        by = SCALE_SUBRESOURCE
    opportunity = known.opportunity if known is not None else None
    if known is not None and not is_by_growth:
        opportunity = _begun_anew(job, known, due, now)
    return _with_opportunity(job, Scaling(replicas=worker.replicas, by=by, at=now, opportunity=opportunity))


def _begun_anew(job: ElasticJob, known: Scaling, due: ScalePlan | None, now: datetime) -> Opportunity | None:
    """Whatever count somebody else asks for is what opportunistic growth begins from."""
    policy, count = policy_of(job), job.spec.replica_specs[names.WORKER].replicas
    if policy is None:
        return None
    base = asked_base(due, job) if due is not None else None
    return begun_anew(policy, known.opportunity, known.replicas, count, count if base is None else base, now)


def _with_opportunity(job: ElasticJob, scaling: Scaling | None) -> Scaling | None:
    """Adds an opportunity if the job may grow by itself, or has to give back what it grew to."""
    if scaling is None:
        return None
    known = scaling.opportunity
    if policy_of(job) is not None:
        known = known or Opportunity(base=scaling.replicas)
    elif known is not None and (scaling.replicas <= known.base or job.spec.elastic_policy.shard_scaling):
        known = None
    return scaling.model_copy(update={"opportunity": known})


def _is_by_growth(plan: ScalePlan | None, scaling: Scaling | None) -> bool:
    by = f"ScalePlan {plan.metadata.name}" if plan is not None and is_growth(plan) else None
    return scaling is not None and scaling.by == by


def _asks_count(plan: ScalePlan) -> bool:
    return names.WORKER in plan.status.replicas and not is_growth(plan)


def _stands_by(job: ElasticJob, worker: ElasticWorker, members: Collection[int]) -> bool:
    """Whether it could train, and the world is complete: another who stood by is in the place it came for."""
    is_complete = len(members) >= job.spec.replica_specs[worker.spec.type].replicas
    return is_complete and current_report(worker) is not None


def _runs(worker: ElasticWorker) -> bool:
    status = worker.status
    return status.phase is WorkerPhase.RUNNING and status.observed_incarnation == worker.spec.incarnation


def _is_in_worlds(rendezvous: Rendezvous, source: ElasticWorker | None, target: ElasticWorker) -> bool:
    if target.spec.type != names.WORKER:
        return False
    formed_once = rendezvous.phase is not RendezvousPhase.FORMING
    pair = (worker for worker in (source, target) if worker is not None)
    return formed_once or any(current_report(worker) is not None for worker in pair)


def wrote_count(entry: Mapping[str, Any]) -> bool:
    """Whether the manager of this entry of `managedFields` owns the count of workers."""
    fields = entry.get("fieldsV1") or {}
    for key in ("f:spec", "f:replicaSpecs", f"f:{names.WORKER}", "f:replicas"):
        if key not in fields:
            return False
        fields = fields[key]
    return True
