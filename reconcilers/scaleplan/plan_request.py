"""The request of a ScalePlan to its job, and whether it is feasible. Pure.

Every refusal is one sentence that names the field; a refused plan does not change the job.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

from controller.wording import counted
from crds import names
from crds.elasticjob import ElasticJob
from crds.elasticworker import ElasticWorker
from crds.model import ResourceRequirements
from crds.phases import JobPhase
from crds.scaleplan import PodMeta, ScalePlan
from crds.template import MAX_RESOURCES
from reconcilers.observed.builder import pod_name
from reconcilers.observed.groups import group_of
from reconcilers.observed.minimum import stated_minimum
from reconcilers.observed.slots import base_of, training_types, wanted_slots
from reconcilers.observed.suitable import Sizes
from reconcilers.scale.permission import ScaleRefusal, not_automatic
from reconcilers.scale.plan_resources import Amounts, requirements, too_large, too_small
from reconcilers.scale.request import MAX_CHARACTERS, Origin, ScaleRequest, edits_from

LABEL_SCALE_TYPE = "scale-type"
"""DLRover's label: `manual` or `auto`."""
AUTO = "auto"
_PATH = {
    "AutoScaleDisabled": f"metadata.labels[{LABEL_SCALE_TYPE}]: the plan is automatic, and ",
    "AboveResourceLimits": "spec.replicaResourceSpecs: ",
}
"""Beginning of a refusal of automatic requests, with the field of the plan, by reason."""
MANY = 10_000
"""Limit of workers in a plan."""


@dataclass(frozen=True)
class NamedPod:
    """An entry of migratePods, resolved to a slot of the job."""

    path: str
    text: str
    """The entry, as messages name it."""
    type: str | None = None
    """Type of the worker; None if the job cannot have such a worker."""
    index: int = -1
    incarnation: int | None = None


def impossible(plan: ScalePlan, job: ElasticJob | None) -> ScaleRefusal | None:
    """Why no plan can be applied to the job; None if one can."""
    name = plan.spec.owner_job
    if job is None or job.metadata.deletion_timestamp is not None:
        return ScaleRefusal("JobNotFound", f"spec.ownerJob: there is no ElasticJob {name}")
    if job.status.finished:
        ended = "has succeeded" if job.status.phase is JobPhase.SUCCEEDED else "has failed"
        return ScaleRefusal("JobFinished", f"spec.ownerJob: the job {name} {ended}")
    if job.spec.suspend:
        return ScaleRefusal("JobSuspended", f"spec.ownerJob: the job {name} is suspended")
    return _of_groups(name, job)


def _of_groups(name: str, job: ElasticJob) -> ScaleRefusal | None:
    """Why no plan can change the job: it has replica groups, or is one."""
    whole, group = name, group_of(job)
    if group is not None:
        message = f"spec.ownerJob: the job {name} is a replica group of the job {group.name}"
        whole = group.name
    elif job.spec.elastic_policy.replica_groups is not None:
        message = f"spec.ownerJob: the job {name} has replica groups"
    else:
        return None
    how = f"scale it by whole groups, in spec.replicaSpecs.worker.replicas of {whole}"
    return ScaleRefusal("ReplicaGroups", f"{message}, which no ScalePlan changes: {how}")


def _new_base(plan: ScalePlan, job: ElasticJob) -> int | None:
    """Number of needed workers after a plan that adds some to a job with extra workers.

    Returns:
        None if the plan has a count, or the job no extra workers.
    """
    base, of_plan = base_of(job), plan.spec.replica_resource_specs.get(names.WORKER)
    if base is None or (of_plan is not None and of_plan.replicas is not None):
        return None
    created = sum((pod.type or names.WORKER) == names.WORKER for pod in plan.spec.create_pods)
    return base + created if created else None


def request_of(plan: ScalePlan, job: ElasticJob) -> ScaleRequest:
    """The request of the plan for the job in its present state."""
    spec = plan.spec
    created = Counter(pod.type or names.WORKER for pod in spec.create_pods)
    base = _new_base(plan, job)
    replicas = {}
    for type_, of_job in job.spec.replica_specs.items():
        asked = spec.replica_resource_specs.get(type_)
        if asked is not None and asked.replicas is not None:
            replicas[type_] = asked.replicas
        elif created[type_]:
            grown = type_ == names.WORKER and base is not None
            replicas[type_] = max(of_job.replicas, base or 0) if grown else of_job.replicas + created[type_]
    resources = {
        type_: requirements(job, type_, asked.resource)
        for type_, asked in spec.replica_resource_specs.items()
        if asked.resource and type_ in job.spec.replica_specs
    }
    return ScaleRequest(
        id=plan.metadata.uid,
        job=job.metadata.uid,
        origin=Origin.PLAN,
        plan=plan.metadata.name,
        replicas=replicas,
        moved=_moved(plan, job),
        resources=resources,
        edits_from=edits_from(job, replicas),
        base=base,
    )


def refusal(
    plan: ScalePlan, job: ElasticJob, workers: Sequence[ElasticWorker], sizes: Sizes
) -> ScaleRefusal | None:
    """Why the plan is not feasible; None if it is."""
    found = _unknown_type(plan, job) or _unknown_pod(plan, job, workers)
    if found is not None:
        return found
    request = request_of(plan, job)
    if not request.types:
        return ScaleRefusal(
            "NothingAsked",
            "spec: the plan requests nothing: no counts, no resources, and no Pods",
        )
    if len(request.to_text()) > MAX_CHARACTERS:
        return ScaleRefusal(
            "NotSupported", "spec: the plan names too many Pods and resources; split it into several"
        )
    found = _bad_counts(plan, job, request) or _bad_resources(plan, job, sizes)
    if found is not None or plan.metadata.labels.get(LABEL_SCALE_TYPE) != AUTO:
        return found
    found = not_automatic(job, request)
    return None if found is None else ScaleRefusal(found.reason, f"{_PATH[found.reason]}{found.message}")


def _bad_counts(plan: ScalePlan, job: ElasticJob, request: ScaleRequest) -> ScaleRefusal | None:
    """The refusal of a count that the job cannot have."""
    base = [] if request.base is None else [(names.WORKER, request.base)]
    counts = [*request.replicas.items(), *base]
    found = (_bad_count(job, type_, count, _path_of_count(plan, type_)) for type_, count in counts)
    return next((each for each in found if each is not None), None)


def _path_of_count(plan: ScalePlan, type_: str) -> str:
    asked = plan.spec.replica_resource_specs.get(type_)
    has_count = asked is not None and asked.replicas is not None
    return f"spec.replicaResourceSpecs[{type_}].replicas" if has_count else "spec.createPods"


def _unknown_type(plan: ScalePlan, job: ElasticJob) -> ScaleRefusal | None:
    asked = [(f"spec.replicaResourceSpecs[{type_}]", type_) for type_ in plan.spec.replica_resource_specs]
    for name, pods in _pods(plan):
        asked += [(f"spec.{name}[{i}].type", pod.type) for i, pod in enumerate(pods) if pod.type is not None]
    for path, type_ in asked:
        if type_ in names.MASTER_TYPES:
            return ScaleRefusal("UnknownType", f"{path}: dlr has no master Pod: {type_} cannot be scaled")
        if type_ not in job.spec.replica_specs:
            known = ", ".join(training_types(job))
            message = f"{path}: the job {job.metadata.name} has no type {type_}, only {known}"
            return ScaleRefusal("UnknownType", message)
    return None


def _unknown_pod(plan: ScalePlan, job: ElasticJob, workers: Sequence[ElasticWorker]) -> ScaleRefusal | None:
    if plan.spec.remove_pods:
        message = "no plan removes single Pods: ask for a count, in spec.replicaResourceSpecs"
        return ScaleRefusal(
            "NotSupported", f"spec.removePods: {message}, or for other Pods, in spec.migratePods"
        )
    for name, pods in _pods(plan):
        for i, meta in enumerate(pods):
            if meta.resource:
                message = "ask for resources by type, in spec.replicaResourceSpecs"
                return ScaleRefusal("NotSupported", f"spec.{name}[{i}].resource: {message}")
    current = {(w.spec.type, w.spec.index): w for w in workers}
    wanted = {type_: frozenset(wanted_slots(job, type_)) for type_ in training_types(job)}
    for pod in _named(plan, job):
        if pod.type is None or pod.index not in wanted.get(pod.type, ()):
            return ScaleRefusal(
                "WorkerNotFound", f"{pod.path}: {pod.text} is no worker of {job.metadata.name}"
            )
        worker = current.get((pod.type, pod.index))
        if worker is not None and pod.incarnation not in (None, worker.spec.incarnation):
            message = f"{pod.path}: {pod.text} does not exist any more: {pod_name(worker)} has replaced it"
            return ScaleRefusal("WorkerNotFound", message)
    return None


def _bad_count(job: ElasticJob, type_: str, replicas: int, path: str) -> ScaleRefusal | None:
    spec = job.spec.replica_specs[type_]
    comes_to = f"{path}: {counted(replicas, 'Pod')} of type {type_}"
    if spec.max_replicas is not None and replicas > spec.max_replicas:
        return ScaleRefusal(
            "AboveMaximum", f"{comes_to}, more than the job's maxReplicas, {spec.max_replicas}"
        )
    least = spec.min_replicas or (_stated_minimum(job) if type_ == names.WORKER else None)
    if least is not None and replicas < least:
        whose = "minReplicas" if spec.min_replicas else "--nnodes minimum"
        return ScaleRefusal("BelowMinimum", f"{comes_to}, fewer than the job's {whose}, {least}")
    unit = job.spec.elastic_policy.node_unit
    if type_ == names.WORKER and replicas % unit:
        return ScaleRefusal("NotWholeUnits", f"{comes_to}, not a multiple of elasticPolicy.nodeUnit, {unit}")
    if not 0 <= replicas <= MANY:
        return ScaleRefusal("OutOfRange", f"{comes_to}, not from 0 to {MANY}")
    return None


def _stated_minimum(job: ElasticJob) -> int | None:
    """The minimum in the job's command; None if there is none, or it follows the count."""
    worker = job.spec.replica_specs[names.WORKER].model_copy(update={"replicas": MANY})
    specs = {**job.spec.replica_specs, names.WORKER: worker}
    many = job.model_copy(update={"spec": job.spec.model_copy(update={"replica_specs": specs})})
    least = stated_minimum(many)
    return None if least == MANY else least


def _bad_resources(plan: ScalePlan, job: ElasticJob, sizes: Sizes) -> ScaleRefusal | None:
    for type_, asked in plan.spec.replica_resource_specs.items():
        path = f"spec.replicaResourceSpecs[{type_}].resource"
        try:
            amounts = Amounts.parse(asked.resource, path)
        except ValueError as error:
            return ScaleRefusal("NotAQuantity", str(error))
        present = job.status.resources.get(type_) or ResourceRequirements()
        if len({*asked.resource, *present.limits, *present.requests}) > MAX_RESOURCES:
            message = f"with those of earlier plans, more than {MAX_RESOURCES} resources"
            return ScaleRefusal("NotSupported", f"{path}: {message}")
        message = too_large(job, type_, amounts, sizes)
        if message:
            return ScaleRefusal("NoNodeLargeEnough", message)
        if message := too_small(job, type_, asked.resource):
            return ScaleRefusal("Contradiction", f"{path}: {message}")
    return None


def _pods(plan: ScalePlan) -> list[tuple[str, list[PodMeta]]]:
    return [("createPods", plan.spec.create_pods), ("migratePods", plan.spec.migrate_pods)]


def _moved(plan: ScalePlan, job: ElasticJob) -> dict[str, list[int]]:
    """The slots of the named Pods, by type, in ascending order; without those that the job cannot have."""
    found: dict[str, set[int]] = {}
    for pod in _named(plan, job):
        if pod.type in job.spec.replica_specs:
            found.setdefault(pod.type, set()).add(pod.index)
    return {type_: sorted(indices) for type_, indices in found.items()}


def _named(plan: ScalePlan, job: ElasticJob) -> list[NamedPod]:
    pods = plan.spec.migrate_pods
    return [_resolved(pod, f"spec.migratePods[{i}]", job) for i, pod in enumerate(pods)]


def _resolved(pod: PodMeta, path: str, job: ElasticJob) -> NamedPod:
    """Find the slot by the name of the ElasticWorker or its Pod; without a name, by type and rank."""
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
