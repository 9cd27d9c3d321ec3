"""The Pods of jobs, as many as there are and are being made."""

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
"""Time in which a Pod that may be made is made, or was refused."""
PODS_PER_SECOND = 5_000
"""Pods that all looks at a job count in a second."""


@dataclass(frozen=True)
class PodCounts:
    """Pods of a job."""

    there: dict[str, int] = field(default_factory=dict)
    """Pods that are not over, and those that are being made, by type."""
    running: dict[str, int] = field(default_factory=dict)
    """Pods that run, or have succeeded, by type."""
    may_vanish: bool = False
    """Whether any counts no longer without an event of its own: it is deleted, and may be lost with its node;
    or it is being made, and may be refused."""

    @property
    def seconds(self) -> float:
        """Time for which they are taken to be so many, beside those that are made."""
        return sum(self.there.values()) / PODS_PER_SECOND


class PodsOfJobs:
    """Counts the Pods of jobs, and remembers which are just being made."""

    def __init__(self, cache: Cache, monotonic: Callable[[], float]) -> None:
        self._pods = cache.store(PODS)
        self._nodes = cache.store(NODES)
        self._monotonic = monotonic
        self._in_flight: ObjectMemory[dict[str, tuple[str, float]]] = cache.store(ELASTICJOBS).memory()
        """Of each job, the workers whose Pods may be made, with their type and when that was decided."""
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
        """How many Pods of a worker's type there are beside its own, which it has no more.

        Of large jobs they are counted now and then: whoever is gone since counts until then.
        """
        found = self._counted.get(job.metadata.uid)
        is_new = found is not None and found[1].seconds > self._monotonic() - found[0]
        counts = found[1] if found is not None and is_new else self.count(job)
        return counts.there.get(worker.spec.type, 0) - self.is_in_flight(job, worker.metadata.uid)

    def is_in_flight(self, job: ElasticJob, worker_uid: str) -> bool:
        """Return whether a worker's Pod is just being made, as far as is known."""
        return worker_uid in (self._in_flight.get(job.metadata.uid) or {})

    def is_left(self, key: str) -> bool:
        """Whether a job that is gone has Pods, by its namespace and name."""
        found = self._pods.by_index(BY_JOB, key)
        return any(not (has_ended(pod) or self._is_lost(pod)) for pod in found)

    def _is_lost(self, pod: Object) -> bool:
        """Whether a Pod is deleted, and on a node that is gone or silent: nobody can say when it has ended,
        and till then its queue would stand still."""
        node = (pod.get("spec") or {}).get("nodeName")
        if "deletionTimestamp" not in pod["metadata"] or not node:
            return False
        found = self._nodes.get(None, node)
        return found is None or bool(why_not_ready(found))

    def is_made(self, job: ElasticJob, worker: ElasticWorker) -> None:
        """Remember that a worker's Pod is made now, which the cache has yet to show."""
        uid, type_ = job.metadata.uid, worker.spec.type
        in_flight = self._in_flight.get(uid)
        if in_flight is None:
            in_flight = self._in_flight.put(uid, {})
        if worker.metadata.uid not in in_flight and (found := self._counted.get(uid)) is not None:
            there = found[1].there
            there[type_] = there.get(type_, 0) + 1
        in_flight[worker.metadata.uid] = (type_, self._monotonic())
