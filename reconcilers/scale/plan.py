"""What a ScalePlan asks of its job, and whether that can be. Pure.

Every refusal is one sentence that names the field; the job is not touched by a plan that is refused.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from controller.wording import counted
from crds import names
from crds.elasticjob import ElasticJob
from crds.elasticworker import ElasticWorker
from crds.model import ResourceRequirements
from crds.phases import JobPhase
from crds.scaleplan import PodMeta, ScalePlan
from reconcilers.observed.builder import pod_name
from reconcilers.observed.extra import opportunity_of
from reconcilers.observed.minimum import stated_minimum
from reconcilers.observed.roles import ROLES, in_cluster
from reconcilers.observed.slots import slots_of, training_types, wanted_slots
from reconcilers.roles.tasks import config_fault
from reconcilers.scale.plan_resources import Amounts, requirements, too_large, too_much_in_all

LABEL_SCALE_TYPE = "scale-type"
"""DLRover's: `manual` or `auto`."""
AUTO = "auto"
LABEL_ASKED_BY = f"{names.GROUP}/asked-by"
"""Of a plan that the controller made: what for."""
GROWTH = "room"
"""Growth into free room, and what is given back of it."""
MANY = 10_000
"""More workers than any plan asks for."""


@dataclass(frozen=True)
class Refusal:
    reason: str
    """Reason of the plan's condition Failed."""
    message: str


@dataclass(frozen=True)
class Intent:
    """What a plan comes to, by replica type."""

    replicas: Mapping[str, int] = field(default_factory=dict)
    """The counts that it asks for."""
    removed: Mapping[str, frozenset[int]] = field(default_factory=dict)
    moved: Mapping[str, frozenset[int]] = field(default_factory=dict)
    resources: Mapping[str, ResourceRequirements] = field(default_factory=dict)
    """To lay over those that are in force for the type."""

    @property
    def types(self) -> frozenset[str]:
        return frozenset({*self.replicas, *self.removed, *self.moved, *self.resources})


@dataclass(frozen=True)
class NamedPod:
    """An entry of removePods or migratePods, as the job's names say it."""

    path: str
    said: str
    type: str | None = None
    """None if there can be no such worker."""
    index: int = -1
    incarnation: int | None = None


def is_automatic(plan: ScalePlan) -> bool:
    return plan.metadata.labels.get(LABEL_SCALE_TYPE) == AUTO


def is_growth(plan: ScalePlan) -> bool:
    """Whether opportunistic growth has asked for it."""
    return plan.metadata.labels.get(LABEL_ASKED_BY) == GROWTH


def _gives_back(plan: ScalePlan, job: ElasticJob) -> bool:
    """Whether growth gives back what nobody asked for. That is refused by nothing: neither a job that is
    suspended, nor one that is not to be scaled any more, wants to keep it."""
    said = plan.spec.replica_resource_specs.get(names.WORKER)
    worker = job.spec.replica_specs.get(names.WORKER)
    if not is_growth(plan) or worker is None or said is None or said.replicas is None:
        return False
    return said.replicas <= worker.replicas


def impossible(plan: ScalePlan, job: ElasticJob | None) -> Refusal | None:
    """Why nothing can be carried out for the plan's job."""
    name = plan.spec.owner_job
    if job is None or job.metadata.deletion_timestamp is not None:
        return Refusal("JobNotFound", f"spec.ownerJob: there is no ElasticJob {name}")
    phase = job.status.phase
    if phase is not None and phase.finished:
        ended = "has succeeded" if phase is JobPhase.SUCCEEDED else "has failed"
        return Refusal("JobFinished", f"spec.ownerJob: the job {name} {ended}")
    if job.spec.suspend and not _gives_back(plan, job):
        return Refusal("JobSuspended", f"spec.ownerJob: the job {name} is suspended")
    return None


def asked_base(plan: ScalePlan, job: ElasticJob) -> int | None:
    """What the count that was asked for becomes by a plan that adds workers, or names some that are to go, of
    a job that has grown beyond it; None if the plan says a count, or the job has not grown.

    Who is named among the extra workers is none of those that were asked for.
    """
    known, said = opportunity_of(job), plan.spec.replica_resource_specs.get(names.WORKER)
    if known is None or (said is not None and said.replicas is not None):
        return None
    removed = _slots(plan.spec.remove_pods, "removePods", job).get(names.WORKER, frozenset())
    created = sum((pod.type or names.WORKER) == names.WORKER for pod in plan.spec.create_pods)
    if not (removed or created):
        return None
    asked_for = slots_of(job, names.WORKER).wanted(known.base)
    return known.base + created - len(removed.intersection(asked_for))


def intent_of(plan: ScalePlan, job: ElasticJob) -> Intent:
    """What the plan asks, as far as it is of this job; its counts are the job's, changed as it says.

    Those of a plan that has begun are in its status: the job's count has been changed by then.
    """
    spec = plan.spec
    removed = _slots(spec.remove_pods, "removePods", job)
    created = Counter(pod.type or names.WORKER for pod in spec.create_pods)
    replicas = {}
    for type_, of_job in job.spec.replica_specs.items():
        asked = spec.replica_resource_specs.get(type_)
        if asked is not None and asked.replicas is not None:
            replicas[type_] = asked.replicas
        elif created[type_] or type_ in removed:
            left = of_job.replicas - len(removed.get(type_, ()))
            base = asked_base(plan, job) if type_ == names.WORKER else None
            replicas[type_] = left + created[type_] if base is None else max(left, base)
    resources = {
        type_: requirements(job, type_, asked.resource)
        for type_, asked in spec.replica_resource_specs.items()
        if asked.resource and type_ in job.spec.replica_specs
    }
    return Intent(replicas, removed, _slots(spec.migrate_pods, "migratePods", job), resources)


def refusal(
    plan: ScalePlan,
    job: ElasticJob,
    workers: Sequence[ElasticWorker],
    nodes: Collection[Mapping[str, Any]],
) -> Refusal | None:
    """Why the plan cannot be carried out, if it cannot.

    Args:
        plan: any.
        job: as it is now, neither finished nor suspended.
        workers: the job's.
        nodes: of the cluster, as the API server has them.
    """
    found = _unknown_type(plan, job) or _unknown_pod(plan, job, workers)
    if found is not None:
        return found
    intent = intent_of(plan, job)
    if not intent.types:
        return Refusal(
            "NothingAsked",
            "spec: the plan asks for nothing, neither for counts, nor for resources, nor for Pods",
        )
    found = _bad_counts(plan, job, intent) or _bad_resources(plan, job, nodes)
    if found is not None or not is_automatic(plan) or _gives_back(plan, job):
        return found
    return _not_automatic(job, intent)


def _bad_counts(plan: ScalePlan, job: ElasticJob, intent: Intent) -> Refusal | None:
    """Refuses wrong counts, and what is asked for besides extra workers."""
    base = asked_base(plan, job)
    counts = [*intent.replicas.items(), *([] if base is None else [(names.WORKER, base)])]
    found = (_bad_count(job, type_, count, _path_of_count(plan, type_)) for type_, count in counts)
    if (bad := next((each for each in found if each is not None), None)) is not None:
        return bad
    more = [
        type_ for type_, count in intent.replicas.items() if count > job.spec.replica_specs[type_].replicas
    ]
    fault = config_fault(job, intent.replicas) if more and in_cluster(job) else None
    return None if fault is None else Refusal("OutOfRange", f"{_path_of_count(plan, min(more))}: {fault}")


def _path_of_count(plan: ScalePlan, type_: str) -> str:
    asked = plan.spec.replica_resource_specs.get(type_)
    if asked is not None and asked.replicas is not None:
        return f"spec.replicaResourceSpecs[{type_}].replicas"
    created = any((pod.type or names.WORKER) == type_ for pod in plan.spec.create_pods)
    return "spec.createPods" if created else "spec.removePods"


def _unknown_type(plan: ScalePlan, job: ElasticJob) -> Refusal | None:
    asked = [(f"spec.replicaResourceSpecs[{type_}]", type_) for type_ in plan.spec.replica_resource_specs]
    for name, pods in _pods(plan):
        asked += [(f"spec.{name}[{i}].type", pod.type) for i, pod in enumerate(pods) if pod.type is not None]
    for path, type_ in asked:
        if type_ in names.MASTER_TYPES:
            return Refusal("UnknownType", f"{path}: dlr has no master Pod: {type_} cannot be scaled")
        if type_ not in job.spec.replica_specs:
            known = ", ".join(training_types(job))
            message = f"{path}: the job {job.metadata.name} has no type {type_}, only {known}"
            return Refusal("UnknownType", message)
    return None


def _unknown_pod(plan: ScalePlan, job: ElasticJob, workers: Sequence[ElasticWorker]) -> Refusal | None:
    for name, pods in _pods(plan):
        for i, meta in enumerate(pods):
            if meta.resource:
                message = "ask for resources by type, in spec.replicaResourceSpecs"
                return Refusal("NotSupported", f"spec.{name}[{i}].resource: {message}")
    removed = _named(plan.spec.remove_pods, "removePods", job)
    moved = _named(plan.spec.migrate_pods, "migratePods", job)
    current = {(w.spec.type, w.spec.index): w for w in workers}
    wanted = {type_: frozenset(wanted_slots(job, type_)) for type_ in training_types(job)}
    for pod in (*removed, *moved):
        if pod.type is None or pod.index not in wanted.get(pod.type, ()):
            return Refusal("WorkerNotFound", f"{pod.path}: {pod.said} is no worker of {job.metadata.name}")
        worker = current.get((pod.type, pod.index))
        if worker is not None and pod.incarnation not in (None, worker.spec.incarnation):
            message = f"{pod.path}: {pod.said} is no longer there: {pod_name(worker)} is in its place"
            return Refusal("WorkerNotFound", message)
    both = {(pod.type, pod.index) for pod in removed}
    for pod in moved:
        if (pod.type, pod.index) in both:
            return Refusal("Contradiction", f"{pod.path}: spec.removePods names {pod.said} too")
    return None


def _bad_count(job: ElasticJob, type_: str, replicas: int, path: str) -> Refusal | None:
    spec = job.spec.replica_specs[type_]
    comes_to = f"{path}: {counted(replicas, 'Pod')} of type {type_}"
    role = ROLES[type_] if in_cluster(job) else None
    if role is not None and not role.least <= replicas <= role.most:
        bounds = f"a job with parameter servers has from {role.least} to {role.most} of them"
        return Refusal("OutOfRange", f"{comes_to}, and {bounds}")
    if spec.max_replicas is not None and replicas > spec.max_replicas:
        return Refusal("AboveMaximum", f"{comes_to}, more than the job's maxReplicas, {spec.max_replicas}")
    least = spec.min_replicas or (_stated_minimum(job) if type_ == names.WORKER else None)
    if least is not None and replicas < least:
        whose = "minReplicas" if spec.min_replicas else "--nnodes minimum"
        return Refusal("BelowMinimum", f"{comes_to}, fewer than the job's {whose}, {least}")
    unit = job.spec.elastic_policy.node_unit
    if type_ == names.WORKER and replicas % unit:
        return Refusal("NotWholeUnits", f"{comes_to}, not a multiple of elasticPolicy.nodeUnit, {unit}")
    if not 0 <= replicas <= MANY:
        return Refusal("OutOfRange", f"{comes_to}, not from 0 to {MANY}")
    return None


def _stated_minimum(job: ElasticJob) -> int | None:
    """What the command says it is, unless that follows the count."""
    worker = job.spec.replica_specs[names.WORKER].model_copy(update={"replicas": MANY})
    specs = {**job.spec.replica_specs, names.WORKER: worker}
    many = job.model_copy(update={"spec": job.spec.model_copy(update={"replica_specs": specs})})
    least = stated_minimum(many)
    return None if least == MANY else least


def _bad_resources(plan: ScalePlan, job: ElasticJob, nodes: Collection[Mapping[str, Any]]) -> Refusal | None:
    for type_, asked in plan.spec.replica_resource_specs.items():
        path = f"spec.replicaResourceSpecs[{type_}].resource"
        try:
            amounts = Amounts.parse(asked.resource, path)
        except ValueError as error:
            return Refusal("NotAQuantity", str(error))
        message = too_large(job, type_, amounts, nodes)
        if message:
            return Refusal("NoNodeLargeEnough", message)
    return None


def _not_automatic(job: ElasticJob, intent: Intent) -> Refusal | None:
    for type_ in sorted(intent.types):
        if job.spec.replica_specs[type_].auto_scale is False:
            message = f"the plan is automatic, and the job's replicaSpecs[{type_}].autoScale is false"
            return Refusal("AutoScaleDisabled", f"metadata.labels[{LABEL_SCALE_TYPE}]: {message}")
    message = too_much_in_all(job, intent.replicas, intent.resources)
    return Refusal("AboveResourceLimits", message) if message else None


def _pods(plan: ScalePlan) -> list[tuple[str, list[PodMeta]]]:
    spec = plan.spec
    return [
        ("createPods", spec.create_pods),
        ("removePods", spec.remove_pods),
        ("migratePods", spec.migrate_pods),
    ]


def _slots(pods: Iterable[PodMeta], name: str, job: ElasticJob) -> dict[str, frozenset[int]]:
    found: dict[str, frozenset[int]] = {}
    for pod in _named(pods, name, job):
        if pod.type in job.spec.replica_specs:
            found[pod.type] = found.get(pod.type, frozenset()) | {pod.index}
    return found


def _named(pods: Iterable[PodMeta], name: str, job: ElasticJob) -> list[NamedPod]:
    return [_resolved(pod, f"spec.{name}[{i}]", job) for i, pod in enumerate(pods)]


def _resolved(pod: PodMeta, path: str, job: ElasticJob) -> NamedPod:
    """Finds the slot by the name of the ElasticWorker or its Pod; without a name, by type and rank."""
    if pod.name is None:
        index, type_ = pod.id if pod.rank_index is None else pod.rank_index, pod.type or names.WORKER
        if index is None:
            return NamedPod(path, "an entry without name, id and rankIndex")
        return NamedPod(path, f"{type_} {index}", type_, index)
    for type_ in training_types(job):
        prefix = re.escape(f"{job.metadata.name}-{type_}-")
        found = re.fullmatch(rf"{prefix}(\d{{1,5}})(?:-(\d{{1,5}}))?", pod.name)
        if found:
            incarnation = int(found[2]) if found[2] else None
            return NamedPod(f"{path}.name", pod.name, type_, int(found[1]), incarnation)
    return NamedPod(f"{path}.name", pod.name)
