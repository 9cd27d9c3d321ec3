"""The eviction notices of a job's workers, with their ages by our own clock."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator
from dataclasses import dataclass
from datetime import datetime

from controller.cache import Cache
from controller.resources import NODES, Object
from controller.store import ObjectMemory
from crds import names
from crds.elasticjob import ElasticJob
from crds.elasticworker import ElasticWorker
from reconcilers.evictions.plan import EvictionNotice, can_move
from reconcilers.observed.announced import announcement
from reconcilers.observed.device_taints import NO_SCHEDULE, DeviceTaints
from reconcilers.observed.ownership import BY_OWNER, belongs_to, in_namespace, staying
from reconcilers.runtime.clock import Clock
from reconcilers.runtime.kinds import ELASTICWORKERS
from reconcilers.worker.reconciler import BY_NODE

BY_ANNOUNCED = "announced"
"""Index of Nodes: under `ANNOUNCED`, those whose Pods will be evicted."""
ANNOUNCED = "announced"


def announced_keys(node: Object) -> Iterable[str]:
    """Index function of `BY_ANNOUNCED`."""
    return [ANNOUNCED] if announcement(node) else []


@dataclass(frozen=True)
class _Sight:
    """Time when a node was first seen to announce evictions."""

    monotonic: float
    """Time on the monotonic clock, in seconds."""
    at: datetime
    """Wall time in whole seconds, as the API server writes it."""


class Notices:
    """Reads a job's eviction notices from the cache, and remembers when they were first seen."""

    def __init__(self, cache: Cache, clock: Clock) -> None:
        self._clock = clock
        self._nodes = cache.store(NODES)
        self._workers = cache.store(ELASTICWORKERS)
        self._parse = cache.models(ELASTICWORKERS, ElasticWorker)
        self._sights: ObjectMemory[_Sight] = self._nodes.memory()
        self._taints = cache.shared(DeviceTaints)

    def remember(self, node: Object) -> None:
        """Remember the time since which a node announces evictions. Call it for each change, since later Pods
        on the node tolerate the announcement."""
        uid = node["metadata"]["uid"]
        if not announcement(node):
            self._sights.forget(uid)
        elif self._sights.get(uid) is None:
            self._sights.put(uid, self._sight_now())

    def look_size(self, job: ElasticJob) -> int:
        """Return the number of nodes or workers that `of` looks at."""
        workers = self._workers.count(BY_OWNER, job.metadata.uid)
        return workers if self._taints.are_any else min(self._nodes.count(BY_ANNOUNCED, ANNOUNCED), workers)

    def of(self, job: ElasticJob) -> list[EvictionNotice]:
        """Return the notices of a job's workers. A worker that came to a node after its announcement gets
        none: its template tolerates that, and its next Pod might come there, too. Thread-safe."""
        found, now = list[EvictionNotice](), self._clock.monotonic()
        for raw in self._on_announced(job) if can_move(job) else ():
            name = (raw.get("status") or {}).get("nodeName") or ""
            node = self._nodes.get(None, name)
            why = announcement(node) if node is not None else ""
            if node is None or not why or (worker := self._parse.parse_or_none(raw)) is None:
                continue
            # Not remembered here, since the announcement may end while this thread runs.
            sight = self._sights.get(node["metadata"]["uid"]) or self._sight_now()
            lives = worker.status.history
            if not lives or lives[-1].created_at < sight.at:
                found.append(EvictionNotice(worker, name, why, now - sight.monotonic))
        return [*found, *self._by_devices(job, {notice.index for notice in found})]

    def _by_devices(self, job: ElasticJob, noticed: Collection[int]) -> Iterator[EvictionNotice]:
        """Yield the notices of the other workers with a device that takes no new Pods."""
        is_wanted = can_move(job) and self._taints.are_any
        there = self._workers.by_index(BY_OWNER, job.metadata.uid) if is_wanted else ()
        for raw in self._training(job, there):
            taint = self._taints.of((raw.get("status") or {}).get("podUid") or "", NO_SCHEDULE)
            if taint is None or raw["spec"]["index"] in noticed:
                continue
            if (worker := self._parse.parse_or_none(raw)) is not None:
                yield EvictionNotice(worker, worker.status.node_name or "", f"has the {taint}", None)

    def _sight_now(self) -> _Sight:
        return _Sight(self._clock.monotonic(), self._clock.now().replace(microsecond=0))

    def _on_announced(self, job: ElasticJob) -> Iterator[Object]:
        """The job's training workers that may be on nodes that announce evictions, found from these nodes or
        from the job's workers, whichever are fewer."""
        nodes, workers, uid = self._nodes, self._workers, job.metadata.uid
        if nodes.count(BY_ANNOUNCED, ANNOUNCED) < workers.count(BY_OWNER, uid):
            announced = (node["metadata"]["name"] for node in nodes.by_index(BY_ANNOUNCED, ANNOUNCED))
            on_them = (raw for name in announced for raw in workers.by_index(BY_NODE, name))
            there = [raw for raw in on_them if belongs_to(raw, uid)]
        else:
            there = workers.by_index(BY_OWNER, uid)
        return self._training(job, there)

    def _training(self, job: ElasticJob, workers: Iterable[Object]) -> Iterator[Object]:
        there = staying(in_namespace(workers, job.metadata.namespace))
        return (raw for raw in there if raw["spec"]["type"] == names.WORKER)
