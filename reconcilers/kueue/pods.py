"""Counts the Pods of jobs that exist and that are being created."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

from controller.cache import Cache
from controller.resources import NODES, PODS, Object
from controller.store import ObjectMemory
from crds import names
from crds.elasticjob import ElasticJob
from crds.elasticworker import ElasticWorker
from reconcilers.observed.containers import has_ended
from reconcilers.observed.ownership import BY_JOB, owner_uids
from reconcilers.observed.silence import why_not_ready
from reconcilers.runtime.kinds import ELASTICJOBS

IN_FLIGHT_SECONDS = 30.0
"""Time in which a Pod that may be created is created or refused."""
PODS_PER_SECOND = 5_000
"""Limit of Pods that all looks at a job together count in a second."""


@dataclass(frozen=True)
class PodCounts:
    """Numbers of a job's Pods."""

    there: dict[str, int] = field(default_factory=dict)
    """Pods that have not ended, and those being created, by type."""
    running: dict[str, int] = field(default_factory=dict)
    """Pods that run, or have succeeded, by type."""
    may_vanish: bool = False
    """Whether the counts can fall without an event of a Pod: a deleted one may be lost with its node, or one
    that is being created may be refused."""

    @property
    def seconds(self) -> float:
        """Time for which the counts stay valid, apart from Pods created meanwhile."""
        return sum(self.there.values()) / PODS_PER_SECOND


class PodsOfJobs:
    """Counts the Pods of jobs, and remembers those being created."""

    def __init__(self, cache: Cache, monotonic: Callable[[], float]) -> None:
        self._pods = cache.store(PODS)
        self._nodes = cache.store(NODES)
        self._monotonic = monotonic
        self._in_flight: ObjectMemory[dict[str, tuple[str, float]]] = cache.store(ELASTICJOBS).memory()
        """Workers whose Pods are being created, with type and time of that decision, by job."""
        self._counted: ObjectMemory[tuple[float, PodCounts]] = cache.store(ELASTICJOBS).memory()

    def count(self, job: ElasticJob) -> PodCounts:
        """Count a job's Pods."""
        there, running, owners = dict[str, int](), dict[str, int](), set[str]()
        may_vanish = False
        for pod in self._pods.by_index(BY_JOB, f"{job.metadata.namespace}/{job.metadata.name}"):
            if self._is_lost(pod):
                continue
            type_, phase = pod["metadata"]["labels"][names.LABEL_TYPE], (pod.get("status") or {}).get("phase")
            if not has_ended(pod):
                may_vanish |= "deletionTimestamp" in pod["metadata"]
                there[type_] = there.get(type_, 0) + 1
                owners.update(owner_uids(pod))
            if phase in ("Running", "Succeeded"):
                running[type_] = running.get(type_, 0) + 1
        now, in_flight = self._monotonic(), self._in_flight.get(job.metadata.uid) or {}
        for uid, (type_, since) in list(in_flight.items()):
            if uid in owners or now - since > IN_FLIGHT_SECONDS:
                del in_flight[uid]
            else:
                there[type_] = there.get(type_, 0) + 1
        counts = PodCounts(there, running, may_vanish or bool(in_flight))
        return self._counted.put(job.metadata.uid, (now, counts))[1]

    def beside(self, job: ElasticJob, worker: ElasticWorker) -> int:
        """Number of Pods of a worker's type apart from its own.

        Large jobs are counted less often, so that a Pod that is gone since then still counts.
        """
        found = self._counted.get(job.metadata.uid)
        is_new = found is not None and found[1].seconds > self._monotonic() - found[0]
        counts = found[1] if found is not None and is_new else self.count(job)
        return counts.there.get(worker.spec.type, 0) - self.is_in_flight(job, worker.metadata.uid)

    def is_in_flight(self, job: ElasticJob, worker_uid: str) -> bool:
        """Whether a worker's Pod is being created."""
        return worker_uid in (self._in_flight.get(job.metadata.uid) or {})

    def is_left(self, key: str) -> bool:
        """Whether a deleted job still has Pods.

        Args:
            key: namespace and name of the job.
        """
        found = self._pods.by_index(BY_JOB, key)
        return any(not (has_ended(pod) or self._is_lost(pod)) for pod in found)

    def _is_lost(self, pod: Object) -> bool:
        """Whether a Pod is deleted on a node that is gone or silent: nothing reports its end, for which its
        queue would wait."""
        node = (pod.get("spec") or {}).get("nodeName")
        if "deletionTimestamp" not in pod["metadata"] or not node:
            return False
        found = self._nodes.get(None, node)
        return found is None or bool(why_not_ready(found))

    def note_creation(self, job: ElasticJob, worker: ElasticWorker) -> None:
        """Remember that a worker's Pod is being created, until the cache shows it."""
        uid, type_ = job.metadata.uid, worker.spec.type
        in_flight = self._in_flight.get(uid)
        if in_flight is None:
            in_flight = self._in_flight.put(uid, {})
        if worker.metadata.uid not in in_flight and (found := self._counted.get(uid)) is not None:
            there = found[1].there
            there[type_] = there.get(type_, 0) + 1
        in_flight[worker.metadata.uid] = (type_, self._monotonic())
