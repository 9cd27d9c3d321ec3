"""What a worker is there for: the training of an ElasticJob, or the test of a node for a NodeCheck.

The Worker reconciler keeps Pods; what it has to know of their owner for that is an Assignment.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from controller.cache import Cache
from controller.resources import ELASTICJOBS, NODECHECKS, NODES
from crds import names
from crds.elasticjob import ElasticJob, FailureRule, JobPhase
from crds.elasticworker import ElasticWorker
from crds.nodecheck import NodeCheck
from reconcilers.failure.rules import rules_of
from reconcilers.job import run_policy
from reconcilers.pod.check_pod import GRACE_SECONDS, HEARTBEAT_TIMEOUT_SECONDS, build_check_pod
from reconcilers.pod.gang import PodGroup, pod_group_of
from reconcilers.pod.job_pod import build_job_pod

Object = dict[str, Any]


@dataclass(frozen=True)
class Assignment(ABC):
    """What the owner of a worker wants of it."""

    worker: ElasticWorker
    owner: Object
    """The job or the check as the API server has it, to tell Events on."""

    @property
    @abstractmethod
    def released(self) -> bool:
        """Whether the worker may go: it gets no new Pod, and to lose the one it has is no failure."""

    @property
    @abstractmethod
    def heartbeat_timeout_seconds(self) -> float:
        """For how long its agent may be silent."""

    @property
    def failure_rules(self) -> Sequence[FailureRule]:
        """What its owner says to particular ends."""
        return ()

    @property
    @abstractmethod
    def pod_group(self) -> PodGroup | None:
        """What has to be there before the Pod."""

    @abstractmethod
    def build_pod(self) -> Object:
        """The Pod to create for the worker's incarnation, without what is injected."""

    @property
    @abstractmethod
    def wants_agent(self) -> bool:
        """Whether the agent is to be injected into its Pod."""

    @abstractmethod
    def seconds_to_cleaning(self, *, pod_ended: bool, now: datetime) -> float | None:
        """Until the Pod of a released worker is to be deleted; None if it may stay."""


@dataclass(frozen=True)
class JobAssignment(Assignment):
    """To train, until the job is suspended or finished. One that is resumed stays suspended until its status
    says otherwise: until then its reconciler has to see which Pods are on their way out."""

    job: ElasticJob

    @property
    def released(self) -> bool:
        phase = self.job.status.phase
        return self.job.spec.suspend or (
            phase is not None and (phase.finished or phase is JobPhase.SUSPENDED)
        )

    @property
    def heartbeat_timeout_seconds(self) -> float:
        return float(self.job.spec.elastic_policy.heartbeat_timeout_seconds)

    @property
    def failure_rules(self) -> Sequence[FailureRule]:
        return rules_of(self.job)

    @property
    def pod_group(self) -> PodGroup | None:
        return pod_group_of(self.job) if self.worker.spec.type == names.WORKER else None

    def build_pod(self) -> Object:
        return build_job_pod(self.job, self.worker)

    @property
    def wants_agent(self) -> bool:
        return self.worker.spec.type == names.WORKER and self.job.spec.agent.inject

    def seconds_to_cleaning(self, *, pod_ended: bool, now: datetime) -> float | None:
        return run_policy.seconds_to_cleaning(self.job, self.worker.spec.type, pod_ended=pod_ended, now=now)


@dataclass(frozen=True)
class CheckAssignment(Assignment):
    """To test its node, until the check has its verdicts or was given up."""

    check: NodeCheck
    node: Object | None
    image: str

    @property
    def released(self) -> bool:
        phase = self.check.status.phase
        return phase is not None and phase.finished

    @property
    def heartbeat_timeout_seconds(self) -> float:
        return HEARTBEAT_TIMEOUT_SECONDS

    @property
    def pod_group(self) -> PodGroup | None:
        return None

    def build_pod(self) -> Object:
        return build_check_pod(self.check, self.worker, self.node, self.image)

    @property
    def wants_agent(self) -> bool:
        return True

    def seconds_to_cleaning(self, *, pod_ended: bool, now: datetime) -> float | None:
        """Agents leave by themselves, and their logs stay. But a Pod that never started, or hangs on a broken
        node, would hold the node's GPUs for ever."""
        template, completed = self.check.spec.template, self.check.status.completion_time
        if pod_ended or completed is None:
            return None
        grace = GRACE_SECONDS if template is None else run_policy.grace_seconds(template)
        return run_policy.seconds_to_leave(grace, completed, now)


class Assignments:
    """Finds the owners in the cache."""

    def __init__(self, cache: Cache, check_image: str) -> None:
        self._jobs = cache.store(ELASTICJOBS)
        self._checks = cache.store(NODECHECKS)
        self._nodes = cache.store(NODES)
        self._parse_job = cache.models(ELASTICJOBS, ElasticJob)
        self._parse_check = cache.models(NODECHECKS, NodeCheck)
        self._check_image = check_image

    def of(self, worker: ElasticWorker) -> Assignment | None:
        """None if the owner is gone or going: garbage collection takes the worker and its Pods with it."""
        namespace, spec = worker.metadata.namespace, worker.spec
        if spec.job_name is not None:
            job = _standing(self._jobs.get(namespace, spec.job_name))
            return JobAssignment(worker, job, self._parse_job.parse(job)) if job else None
        check = _standing(self._checks.get(namespace, spec.check_name or ""))
        if check is None:
            return None
        node = self._nodes.get(None, spec.node_name) if spec.node_name else None
        return CheckAssignment(worker, check, self._parse_check.parse(check), node, self._check_image)


def _standing(owner: Object | None) -> Object | None:
    return None if owner is None or owner["metadata"].get("deletionTimestamp") else owner
