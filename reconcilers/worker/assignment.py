"""The purpose of a worker: the training of an ElasticJob, or the task of another owner.

An Assignment is all that the Worker reconciler has to know about a worker's owner: the Pod that the worker
gets (`job_pod.py`), and when that may go.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import ClassVar, Protocol, TypeAlias

from controller.cache import Cache
from controller.resources import Object, Resource
from controller.store import Change
from crds import names
from crds.elasticjob import ElasticJob
from crds.elasticworker import ElasticWorker, WorkerPhase
from crds.failure_policy import FailureRule
from crds.job_spec import ReplicaSpec
from crds.phases import JobPhase
from reconcilers.failure.rules import rules_of
from reconcilers.goodput.goodput import NOT_YET_TRAINING
from reconcilers.observed import run_policy
from reconcilers.observed.domains import shared_labels
from reconcilers.observed.ownership import owner_uids, spares_its_own
from reconcilers.observed.slots import is_extra, priority_class_of, slot_count
from reconcilers.runtime.kinds import ELASTICJOBS
from reconcilers.worker.job_pod import build_job_pod
from reconcilers.worker.pod_refusal import PodSource

STARTS_PER_SECOND = 250
"""Pods that any cluster's scheduler places in a second; larger jobs get proportionally more time."""


@dataclass(frozen=True)
class Obstacle:
    """The reason why a Pod is not created now."""

    reason: str
    message: str
    retry_seconds: float
    is_reported: bool = True
    """Whether the worker's status shows it."""
    counts_ended: bool = False
    """Whether it is a quota that counts ended Pods too."""


class Gate(Protocol):
    """A feature for which the Pods of some jobs wait."""

    async def obstacle(self, worker: ElasticWorker, job: ElasticJob) -> Obstacle | None:
        """Return why the worker's Pod cannot be created yet; None if it may."""

    def enlist(self, pod: Object, worker: ElasticWorker, job: ElasticJob) -> None:
        """Mark a Pod that is about to be created."""

    def note_created(self, wanted: Object, pod: Object, job: ElasticJob) -> None:
        """Note the Pod as the API server has stored it."""

    def hold_of(self, pod: Object, worker: ElasticWorker, job: ElasticJob) -> Obstacle | None:
        """Return why the feature keeps the worker's Pod from being scheduled; None if it does not."""


_ENDS = {JobPhase.SUCCEEDED: WorkerPhase.SUCCEEDED, JobPhase.FAILED: WorkerPhase.FAILED}


@dataclass(frozen=True)
class JobAssignment:
    """A worker that trains until its job is suspended or finished. A resumed job counts as suspended until
    its status changes: before that, its reconciler has to see which Pods are leaving."""

    worker: ElasticWorker
    owner: Object
    """The raw job, for Events."""
    job: ElasticJob
    trains: ClassVar[bool] = True
    resource: ClassVar[Resource] = ELASTICJOBS

    @property
    def _replica(self) -> ReplicaSpec | None:
        """Replica spec of the worker's type; None once that is removed from the job."""
        return self.job.spec.replica_specs.get(self.worker.spec.type)

    @property
    def released(self) -> bool:
        """Whether the worker may go: it gets no new Pod, and the loss of its present one is no failure."""
        status = self.job.status
        is_halted = status.finished or status.phase is JobPhase.SUSPENDED
        return self.job.stops or is_halted or self._replica is None

    @property
    def ended(self) -> WorkerPhase | None:
        """Final phase of workers that end with the job; None while it goes on."""
        phase = self.job.status.phase
        return None if phase is None else _ENDS.get(phase)

    @property
    def heartbeat_timeout_seconds(self) -> float:
        """Time for which the worker's agent may be silent."""
        return float(self.job.spec.elastic_policy.heartbeat_timeout_seconds)

    @property
    def waits_for_world(self) -> bool:
        """Whether the next Pod's processes start only with a world: an agent of the worker has reported.
        All others start with the Pod."""
        return self.worker.status.agent is not None and self.worker.spec.type == names.WORKER

    @property
    def workers(self) -> int:
        """Number of workers of its type, which start at the same time, itself included."""
        return 0 if self._replica is None else slot_count(self._replica)

    @property
    def is_probe(self) -> bool:
        """Whether its Pod probes for free nodes: the job waits for its node, which no Event reports."""
        return is_extra(self.job, self.worker)

    @property
    def failure_rules(self) -> Sequence[FailureRule]:
        return rules_of(self.job)

    @property
    def restart_count(self) -> int:
        """Number of failures of one class that the worker's budget allows."""
        return 0 if self._replica is None else self._replica.restart_count

    @property
    def counted_round(self) -> int | None:
        """Round in which the job has counted a failure in place of this worker's."""
        failure = self.job.status.last_failure
        is_own = failure is not None and failure.worker == self.worker.metadata.name
        return failure.round if failure is not None and is_own else None

    @property
    def awaited(self) -> bool:
        """Whether the job does not train, and may wait for this worker."""
        goodput = self.job.status.goodput
        return goodput is not None and goodput.state in NOT_YET_TRAINING

    @property
    def topology_keys(self) -> Sequence[str]:
        """Node labels that name what nodes share, where the agent places copies by them."""
        memory = None if self._replica is None else self._replica.memory_checkpoint
        if memory is None or not memory.replicas:
            return ()
        return shared_labels(self.domain_policy, self.job.spec.node_check.topology_keys)

    @property
    def domain_policy(self) -> str | None:
        """Node label that names the node's domain, from the job."""
        return self.job.spec.elastic_policy.domain if self.has_agent else None

    def build_pod(self) -> Object:
        """The Pod to create for the worker's incarnation, without what is injected."""
        return build_job_pod(self.job, self.worker)

    @property
    def source(self) -> PodSource:
        """The user's fields of which the Pod is made."""
        type_ = self.worker.spec.type
        path = "spec.elasticPolicy.opportunistic.priorityClassName"
        priority_class = priority_class_of(self.job, self.worker)
        return PodSource(
            pods=f"the Pods of type {type_}",
            path=f"spec.replicaSpecs.{type_}.template",
            template=self.job.spec.replica_specs[type_].template,
            envs=self.job.spec.envs,
            priority=None if priority_class is None else (path, priority_class),
        )

    @property
    def wants_agent(self) -> bool:
        """Whether the agent is injected into the worker's Pod."""
        return self.has_agent and self.job.spec.agent.inject

    @property
    def has_agent(self) -> bool:
        """Whether the worker's Pod should have an agent."""
        return self.worker.spec.type == names.WORKER

    def seconds_to_cleaning(self, *, pod_ended: bool, now: datetime) -> float | None:
        """Time until the Pod of a released worker is deleted; None if it may stay."""
        type_ = self.worker.spec.type
        return run_policy.seconds_to_cleaning(
            self.job, type_, pod_ended=pod_ended, now=now, has_agent=self.has_agent
        )


@dataclass(frozen=True)
class OtherAssignment(ABC):
    """The task of an owner other than a job, whose workers' agents report no training."""

    worker: ElasticWorker
    owner: Object

    resource: ClassVar[Resource]
    """The kind of the owner."""
    heartbeat_timeout_seconds: ClassVar[float]
    trains: ClassVar[bool] = False
    waits_for_world: ClassVar[bool] = False
    ended: ClassVar[None] = None
    is_probe: ClassVar[bool] = False
    failure_rules: ClassVar[Sequence[FailureRule]] = ()
    restart_count: ClassVar[int] = 0
    counted_round: ClassVar[None] = None
    awaited: ClassVar[bool] = False
    topology_keys: ClassVar[Sequence[str]] = ()
    domain_policy: ClassVar[None] = None
    job: ClassVar[None] = None
    wants_agent: ClassVar[bool] = True

    @property
    @abstractmethod
    def released(self) -> bool:
        """Whether the worker may go."""

    @property
    @abstractmethod
    def workers(self) -> int:
        """Number of workers that start at the same time, itself included."""

    @property
    @abstractmethod
    def source(self) -> PodSource:
        """The user's fields of which the Pod is made."""

    @abstractmethod
    def build_pod(self) -> Object:
        """The Pod to create for the worker's incarnation, without what is injected."""

    @abstractmethod
    def seconds_to_cleaning(self, *, pod_ended: bool, now: datetime) -> float | None:
        """Time until the Pod of a released worker is deleted; None if it may stay."""


Assignment: TypeAlias = JobAssignment | OtherAssignment
AssignToJob: TypeAlias = Callable[[ElasticWorker, Object, ElasticJob], JobAssignment]


@dataclass(frozen=True)
class OtherOwner:
    """A feature's kind whose objects own ElasticWorkers."""

    resource: Resource
    assign: Callable[[ElasticWorker, Object], OtherAssignment | None]
    """The assignment of a worker by its owner; None while the owner cannot be read."""
    ends: Callable[[Change], bool]
    """Whether the change of an object of this kind releases its workers."""


class Assignments:
    """Finds the owners of workers in the cache."""

    def __init__(
        self, cache: Cache, to_job: AssignToJob = JobAssignment, owners: Sequence[OtherOwner] = ()
    ) -> None:
        self._cache = cache
        self._parse_job = cache.models(ELASTICJOBS, ElasticJob)
        self._to_job = to_job
        self._owners = owners

    def of(self, worker: ElasticWorker, raw: Object) -> Assignment | None:
        """The worker's assignment; None if the owner is gone, is deleted without its workers, or cannot be
        read. Garbage collection handles the first two, the owner's own reconciler reports the third.

        Args:
            raw: the worker with its owner's uid, since a job that is applied again has workers of the same
                names.
        """
        if worker.spec.job_name is not None:
            found = self._owner(ELASTICJOBS, worker, raw)
            job = None if found is None else self._parse_job.parse_or_none(found)
            return None if found is None or job is None else self._to_job(worker, found, job)
        for kind in self._owners:
            if (found := self._owner(kind.resource, worker, raw)) is not None:
                return kind.assign(worker, found)
        return None

    def _owner(self, resource: Resource, worker: ElasticWorker, raw: Object) -> Object | None:
        """The object of the kind that owns the worker."""
        found = self._cache.store(resource).get(worker.metadata.namespace, worker.spec.owner_name)
        if found is None or spares_its_own(found) or found["metadata"]["uid"] not in owner_uids(raw):
            return None
        return found
