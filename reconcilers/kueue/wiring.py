"""The controller of jobs in queues, and the changes that trigger it."""

from __future__ import annotations

from collections.abc import Callable, Iterable

from controller.builder import ControllerBuilder
from controller.manager import Manager
from controller.reconciler import Request
from controller.resources import PODS, Object
from controller.shape import Shape
from crds import names
from reconcilers.kueue.gate import QueueGate
from reconcilers.kueue.pods import PodsOfJobs
from reconcilers.kueue.reconciler import KueueReconciler
from reconcilers.kueue.unserved import UnservedQueueReconciler, granted_to
from reconcilers.kueue.workload import WORKLOADS, job_uids, queue_of
from reconcilers.observed.containers import has_ended
from reconcilers.observed.ownership import BY_JOB, BY_OWNER
from reconcilers.predicates import change_of, generation_of
from reconcilers.runtime.kinds import ELASTICJOBS
from reconcilers.runtime.reconciled import ReconciledCondition
from reconcilers.runtime.tools import Tools
from reconcilers.scale.writer import pods_job
from reconcilers.worker.assignment import Gate

WORKERS = 4
KEPT = Shape({"spec": 50_000, "status": 50_000}, metadata=("finalizers",))


def add(manager: Manager, tools: Tools, gates: list[Gate], *, is_wanted: bool) -> None:
    """Register the controller with the manager, and the gate of Pods if queues are wanted."""
    cache = manager.cache
    if not is_wanted:
        unserved = UnservedQueueReconciler(tools)
        ControllerBuilder(manager, "kueue").for_(ELASTICJOBS, predicate=_has_grant).build(unserved)
        return
    cache.keep_only({WORKLOADS: KEPT})
    cache.watch_optionally(WORKLOADS, f"{names.LABEL_MANAGED_BY}={names.MANAGER}")
    cache.add_index(WORKLOADS, BY_OWNER, job_uids)
    cache.add_index(WORKLOADS, BY_JOB, _job_of)
    pods = PodsOfJobs(cache, tools.clock.monotonic)
    gates.append(QueueGate(tools, pods))
    reconciler = KueueReconciler(tools, pods)
    (
        ControllerBuilder(manager, "kueue")
        .for_(ELASTICJOBS, predicate=_asks)
        .owns(WORKLOADS)
        .watches(WORKLOADS, _as_requests(_job_of))
        .watches(PODS, _as_requests(pods_job), predicate=_counts)
        .reports_to(ReconciledCondition(tools, "kueue", ELASTICJOBS))
        .with_workers(WORKERS)
        .build(reconciler)
    )


def _job_of(workload: Object) -> Iterable[str]:
    metadata = workload["metadata"]
    name = (metadata.get("labels") or {}).get(names.LABEL_JOB)
    return [f"{metadata['namespace']}/{name}"] if name else []


def _as_requests(keys_of: Callable[[Object], Iterable[str]]) -> Callable[[Object], Iterable[Request]]:
    """The requests for the jobs that an index function names."""

    def map_function(obj: Object) -> Iterable[Request]:
        for key in keys_of(obj):
            namespace, _, name = key.partition("/")
            yield Request(namespace, name)

    return map_function


@change_of
def _asks(job: Object) -> object:
    """A job's request to its queue, and its grant."""
    metadata, status = job["metadata"], job.get("status", {})
    fields = ("labels", "annotations", "deletionTimestamp")
    resources, admission = status.get("resources"), status.get("admission")
    return generation_of(job), status.get("phase"), resources, admission, *map(metadata.get, fields)


@change_of
def _has_grant(job: Object) -> object:
    """A job's grant, and its queue."""
    return granted_to(job), queue_of(job)


@change_of
def _counts(pod: Object) -> object:
    """Whether a Pod has ended, runs, or is deleted."""
    phase, metadata = (pod.get("status") or {}).get("phase"), pod["metadata"]
    return metadata["uid"], has_ended(pod), phase == "Running", "deletionTimestamp" in metadata
