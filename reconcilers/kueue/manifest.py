"""The Workloads that a job should have. Pure."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property

import orjson

from controller.resources import Object
from crds import names
from crds.elasticjob import ElasticJob
from crds.job_spec import ReplicaSpec
from reconcilers.kueue.workload import (
    DIGEST,
    FINALIZER,
    JOB_UID_LABEL,
    REPLACES,
    WORKLOADS,
    Workload,
)
from reconcilers.observed.builder import companion_metadata
from reconcilers.observed.minimum import minimum_workers
from reconcilers.observed.resources import resources_of
from reconcilers.observed.slots import slot_count, training_types, whole_units

_OF_SPEC = ("nodeSelector", "tolerations", "affinity", "runtimeClassName", "overhead", "resources")
_OF_CONTAINER = ("name", "image", "resources", "restartPolicy")
LONGEST_NAME = 220


@dataclass(frozen=True)
class PodSet:
    """The number of Pods of a type that a Workload requests."""

    count: int
    least: int = 0
    """Minimum with which the job may begin, and to which it can shrink; 0 if that is `count`."""


@dataclass(frozen=True)
class Wish:
    """A job's request to its queue."""

    sets: Mapping[str, PodSet]
    """Pod sets by their names, which are the types of replicas."""
    templates: Mapping[str, Object]
    queue: str
    priority: Object
    """Class and value of the job's priority, as fields of a Workload's spec."""
    growth_priority: Object
    """Class and value of the priority of a slice by which the job grows."""
    worker: ReplicaSpec | None = None
    """Replica spec of the workers; None in a job without any."""
    unit: int = 1
    """Node unit of the workers that train."""

    @cached_property
    def digest(self) -> str:
        """Digest of all that cannot change while the job has quota."""
        fixed = {type_: each.count for type_, each in self.sets.items() if type_ != names.WORKER}
        text = orjson.dumps([self.templates, fixed], option=orjson.OPT_SORT_KEYS)
        return hashlib.sha256(text).hexdigest()[:16]

    @property
    def workers(self) -> int:
        """Number of worker Pods that the job wants, standby included."""
        return self.sets[names.WORKER].count if names.WORKER in self.sets else 0

    @property
    def floor(self) -> int:
        """Minimum of workers with which the job goes on."""
        return self.sets[names.WORKER].least or self.workers if names.WORKER in self.sets else 0

    def useful(self, granted: int) -> int:
        """Number of granted workers that the job uses: whole node units, and its standby."""
        if self.worker is None or granted >= self.workers:
            return self.workers
        fewer = whole_units(self.worker, granted, self.unit)
        return fewer.replicas + fewer.standby

    def more_than(self, granted: int) -> int:
        """Smallest number of workers above `granted` of which the job uses all."""
        found = (more for more in range(granted + 1, self.workers) if self.useful(more) == more)
        return next(found, self.workers)

    def is_of(self, workload: Workload) -> bool:
        """Whether a Workload is in the job's queue, and requests Pods with the job's templates."""
        return workload.queue == self.queue and workload.digest == self.digest

    def with_workers(self, count: int, least: int) -> Mapping[str, PodSet]:
        return {**self.sets, names.WORKER: PodSet(count, least if least < count else 0)}


def wish_of(job: ElasticJob, queue: str, priority: Object, growth_priority: Object) -> Wish:
    """Return a job's request to its queue, with the minimum of its workers."""
    sets, least = {}, minimum_workers(job)
    for type_ in training_types(job):
        count = slot_count(job.spec.replica_specs[type_])
        is_elastic = type_ == names.WORKER and 0 < least < count
        sets[type_] = PodSet(count, least if is_elastic else 0)
    templates = {type_: _template(job, type_) for type_ in sets}
    worker, unit = job.spec.replica_specs.get(names.WORKER), job.spec.elastic_policy.node_unit
    return Wish(sets, templates, queue, priority, growth_priority, worker, unit)


def _template(job: ElasticJob, type_: str) -> Object:
    """The part of a type's Pod template that quota and the choice of nodes depend on."""
    spec = job.spec.replica_specs[type_].template["spec"]
    kept = {key: spec[key] for key in _OF_SPEC if spec.get(key)}
    for kind in ("containers", "initContainers"):
        if spec.get(kind):
            kept[kind] = [{key: each[key] for key in _OF_CONTAINER if each.get(key)} for each in spec[kind]]
    if resources := resources_of(job, type_, None):
        kept["containers"][0]["resources"] = resources
    return {"spec": kept}


def pod_sets(sets: Mapping[str, PodSet], templates: Mapping[str, Object]) -> list[Object]:
    """The Pod sets of a Workload."""
    return [
        {"name": type_, "count": each.count, "template": templates[type_]}
        | ({"minCount": each.least} if each.least else {})
        for type_, each in sets.items()
    ]


def counts(pod_sets: Sequence[Object]) -> Mapping[str, PodSet]:
    """The numbers of Pods that a Workload requests, by Pod set."""
    return {each["name"]: PodSet(int(each["count"]), int(each.get("minCount") or 0)) for each in pod_sets}


def workload_of(
    job: ElasticJob,
    wish: Wish,
    sets: Mapping[str, PodSet],
    number: int,
    priority: Object,
    replaces: Workload | None = None,
) -> Object:
    """The Workload to create.

    Args:
        number: its number among the job's Workloads.
        replaces: the Workload of which it is a slice.
    """
    metadata = companion_metadata(job)
    metadata["name"] = f"{job.metadata.name[:LONGEST_NAME]}-{job.metadata.uid[:8]}-{number}"
    metadata["labels"][JOB_UID_LABEL] = job.metadata.uid
    metadata["annotations"] = {DIGEST: wish.digest}
    if replaces is not None:
        metadata["annotations"][REPLACES] = f"{job.metadata.namespace}/{replaces.name}"
    metadata["finalizers"] = [FINALIZER]
    spec = {"queueName": wish.queue, "active": True, "podSets": pod_sets(sets, wish.templates), **priority}
    return WORKLOADS.manifest(metadata, spec=spec)
