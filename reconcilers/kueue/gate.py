"""The gate of a queue: a Pod is created only if it is granted, and with the settings of its flavors."""

from __future__ import annotations

from collections.abc import Iterable

from controller.errors import Forbidden, NotFound
from controller.resources import Object
from controller.store import ObjectMemory, Store
from crds.elasticjob import ElasticJob
from crds.elasticworker import ElasticWorker
from reconcilers.kueue.pods import PodsOfJobs
from reconcilers.kueue.sorting import JobWorkloads, sorted_workloads
from reconcilers.kueue.workload import FLAVORS, GROUP, WORKLOADS, Workload, queue_of
from reconcilers.observed.containers import has_ended
from reconcilers.observed.ownership import BY_OWNER, belongs_to, in_namespace
from reconcilers.observed.slots import slot_count, slots_of
from reconcilers.observed.workers import worker_name
from reconcilers.runtime.kinds import ELASTICJOBS, ELASTICWORKERS
from reconcilers.runtime.refused import retry_seconds
from reconcilers.runtime.tools import Tools
from reconcilers.worker.assignment import Obstacle

FLAVOR_SECONDS = 60.0
RETRY_SECONDS = 1.0
QUEUED, FLAVOR_UNREADABLE, FLAVOR_CONFLICT = "Queued", "FlavorUnreadable", "FlavorConflict"
TOPOLOGY_GATE = f"{GROUP}/topology"
TOPOLOGY_REQUESTS = tuple(
    f"{GROUP}/podset-{each}-topology" for each in ("required", "preferred", "unconstrained")
)


def why_not_granted(workloads: JobWorkloads, type_: str, there: int) -> str:
    """Say why one more Pod of a type may not be created; empty if it may.

    Args:
        there: number of existing Pods of the type.
    """
    held = workloads.held
    if held is None or held.is_deleted or held.is_evicted or not (held.is_admitted and held.is_active):
        return "its queue does not grant it"
    granted = held.granted(type_)
    return "" if there < granted else f"its queue grants {granted} Pods of type {type_}, which all exist"


def workloads_of(store: Store, namespace: str, job_uid: str) -> list[Workload]:
    """Return the Workloads that a job owns."""
    return [Workload(raw) for raw in in_namespace(store.by_index(BY_OWNER, job_uid), namespace)]


class QueueGate:
    """Holds the Pods of jobs in queues back until they are granted."""

    def __init__(self, tools: Tools, pods: PodsOfJobs) -> None:
        cache = tools.cache
        self._client = tools.client
        self._jobs = cache.store(ELASTICJOBS)
        self._workers = cache.store(ELASTICWORKERS)
        self._workloads = cache.store(WORKLOADS)
        self._pods = pods
        self._monotonic = tools.clock.monotonic
        self._flavors: dict[str, tuple[Object, float]] = {}
        self._granted: ObjectMemory[tuple[Workload, list[Object]]] = cache.store(ELASTICWORKERS).memory()
        """Workload to which a worker's Pod is charged, and the changes to the Pod, by worker."""

    def enlist(self, pod: Object, worker: ElasticWorker, job: ElasticJob) -> None:
        """Add to a Pod the settings of its flavors, checks and topology."""
        granted = self._granted.get(worker.metadata.uid) if self._is_queued(job) else None
        if granted is None:
            return
        held, updates = granted
        metadata, spec = pod["metadata"], pod["spec"]
        metadata["labels"][f"{GROUP}/podset"] = worker.spec.type
        metadata["annotations"][f"{GROUP}/workload"] = held.name
        for update in updates:
            for of in ("labels", "annotations"):
                metadata[of] |= update.get(of) or {}
            spec["nodeSelector"] = {**(spec.get("nodeSelector") or {}), **(update.get("nodeSelector") or {})}
            spec["tolerations"] = [*(spec.get("tolerations") or ()), *(update.get("tolerations") or ())]
        if held.assignment(worker.spec.type).get("topologyAssignment"):
            spec["schedulingGates"] = [*(spec.get("schedulingGates") or ()), {"name": TOPOLOGY_GATE}]
            if not any(each in metadata["annotations"] for each in TOPOLOGY_REQUESTS):
                metadata["annotations"][TOPOLOGY_REQUESTS[-1]] = "true"

    def note_created(self, wanted: Object, pod: Object, job: ElasticJob) -> None:
        """Do nothing: the cache shows the Pod soon."""

    def hold_of(self, pod: Object, worker: ElasticWorker, job: ElasticJob) -> Obstacle | None:
        """Return None: a Pod that exists does not wait for its queue."""
        return None

    async def obstacle(self, worker: ElasticWorker, job: ElasticJob) -> Obstacle | None:
        """Return why a worker's Pod cannot be created yet; None if it is granted."""
        if not self._is_queued(job):
            return None
        type_ = worker.spec.type
        workers = slot_count(job.spec.replica_specs[type_])
        workloads = self._sorted(job)
        if refused := why_not_granted(workloads, type_, self._pods.beside(job, worker)):
            return Obstacle(QUEUED, refused, retry_seconds(workers, RETRY_SECONDS))
        held = workloads.held
        assert held is not None
        if held.granted(type_) <= workers and (other := self._has_its_grant(worker, job)):
            refused = f"its queue grants one Pod for it and {other}, since one moves to the other"
            return Obstacle(QUEUED, refused, retry_seconds(workers, RETRY_SECONDS))
        if (why := await self._read_flavors(held, type_)) is not None:
            return why
        template = job.spec.replica_specs[type_].template["spec"].get("nodeSelector") or {}
        updates = list(self._updates(held, type_))
        for update in updates:
            for key, value in (update.get("nodeSelector") or {}).items():
                if template.get(key, value) != value:
                    message = (
                        f"its flavor requires nodes with {key}={value}, and "
                        f"spec.replicaSpecs.{type_}.template.spec.nodeSelector for {key}={template[key]}: "
                        "remove that from the template"
                    )
                    return Obstacle(FLAVOR_CONFLICT, message, retry_seconds(workers))
        self._pods.note_creation(job, worker)
        self._granted.put(worker.metadata.uid, (held, updates))
        return None

    def _has_its_grant(self, worker: ElasticWorker, job: ElasticJob) -> str:
        """Return the worker at the other end of a move, if it has the Pod that is granted to both; else "".

        Two Pods would take the grant of another slot, for which the world would wait in vain.
        """
        moves = slots_of(job, worker.spec.type).moves
        index = moves.get(worker.spec.index)
        if index is None:
            index = next((source for source, target in moves.items() if target == worker.spec.index), None)
        if index is None:
            return ""
        name = worker_name(job.metadata.name, worker.spec.type, index)
        other = self._workers.get(job.metadata.namespace, name)
        if other is None or not belongs_to(other, job.metadata.uid):
            return ""
        has_pod = (other.get("status") or {}).get("podUid") is not None and not has_ended(other)
        return name if has_pod or self._pods.is_in_flight(job, other["metadata"]["uid"]) else ""

    def _is_queued(self, job: ElasticJob) -> bool:
        raw = self._jobs.get(job.metadata.namespace, job.metadata.name)
        return raw is not None and bool(queue_of(raw))

    def _sorted(self, job: ElasticJob) -> JobWorkloads:
        return sorted_workloads(workloads_of(self._workloads, job.metadata.namespace, job.metadata.uid))

    def _updates(self, held: Workload, type_: str) -> Iterable[Object]:
        """The changes to Pods that flavors and checks require."""
        for name in _flavors_of(held, type_):
            spec = self._flavors[name][0].get("spec") or {}
            yield {"nodeSelector": spec.get("nodeLabels"), "tolerations": spec.get("tolerations")}
        for check in held.status.get("admissionChecks") or ():
            yield from (each for each in check.get("podSetUpdates") or () if each.get("name") == type_)

    async def _read_flavors(self, held: Workload, type_: str) -> Obstacle | None:
        now = self._monotonic()
        for name in _flavors_of(held, type_):
            if name in self._flavors and now - self._flavors[name][1] < FLAVOR_SECONDS:
                continue
            try:
                self._flavors[name] = (await self._client.get(FLAVORS, name), now)
            except (Forbidden, NotFound) as error:
                message = f"the flavor {name}, which Kueue has assigned, cannot be read: {error}"
                return Obstacle(FLAVOR_UNREADABLE, message, retry_seconds())
        return None


def _flavors_of(held: Workload, type_: str) -> list[str]:
    return sorted(set((held.assignment(type_).get("flavors") or {}).values()))
