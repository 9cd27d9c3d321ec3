"""Which workers of a job are under notice of eviction, and since when by our own clock."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

from controller.cache import Cache
from controller.resources import NODES, Object
from controller.store import ObjectMemory
from crds import names
from crds.elasticjob import ElasticJob
from crds.elasticworker import ElasticWorker
from reconcilers.evictions.announced import ANNOUNCED, BY_ANNOUNCED, announcement
from reconcilers.evictions.plan import EvictionNotice
from reconcilers.observed.ownership import belongs_to, in_namespace, staying
from reconcilers.runtime.kinds import ELASTICJOBS, ELASTICWORKERS
from reconcilers.worker.reconciler import BY_NODE


@dataclass(frozen=True)
class _Sight:
    """The first look at a job in which a node announced evictions."""

    at: float
    """Time on the monotonic clock."""
    workers: frozenset[str]
    """Uids of the job's workers that were there."""


class Notices:
    """Reads from the cache what is announced for a job, and remembers when it was first seen."""

    def __init__(self, cache: Cache, monotonic: Callable[[], float]) -> None:
        self._monotonic = monotonic
        self._nodes = cache.store(NODES)
        self._workers = cache.store(ELASTICWORKERS)
        self._parse = cache.models(ELASTICWORKERS, ElasticWorker)
        self._sights: ObjectMemory[Mapping[str, _Sight]] = cache.store(ELASTICJOBS).memory()
        """First looks by the node's uid, for each job with workers on any such node."""

    def of(self, job: ElasticJob) -> list[EvictionNotice]:
        """The notices of a job's workers. Who comes to a node in spite of its announcement gets none: the
        template tolerates it, and the next Pod might come there too."""
        uid, now = job.metadata.uid, self._monotonic()
        there = [(node, self._on(node, job)) for node in self._nodes.by_index(BY_ANNOUNCED, ANNOUNCED)]
        if not any(workers for _, workers in there):
            self._sights.forget(uid)
            return []
        known, sights, found = self._sights.get(uid) or {}, dict[str, _Sight](), list[EvictionNotice]()
        for node, workers in there:
            node_uid, name = node["metadata"]["uid"], node["metadata"]["name"]
            sight = known.get(node_uid) or _Sight(now, frozenset(w.metadata.uid for w in workers))
            sights[node_uid] = sight
            why, age_seconds = announcement(node), now - sight.at
            warned = (worker for worker in workers if worker.metadata.uid in sight.workers)
            found += [EvictionNotice(worker, name, why, age_seconds) for worker in warned]
        self._sights.put(uid, sights)
        return found

    def _on(self, node: Object, job: ElasticJob) -> list[ElasticWorker]:
        """The job's training workers whose Pods are on a node."""
        there = in_namespace(
            self._workers.by_index(BY_NODE, node["metadata"]["name"]), job.metadata.namespace
        )
        of_job = (raw for raw in staying(there) if belongs_to(raw, job.metadata.uid))
        return [w for w in self._parse.readable(of_job) if w.spec.type == names.WORKER]
