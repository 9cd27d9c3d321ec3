"""What wakes a look at the size of a job."""

from __future__ import annotations

from collections.abc import Iterable

from controller.builder import ControllerBuilder
from controller.manager import Manager
from controller.reconciler import Request
from controller.resources import Object
from crds import names
from reconcilers.autoscaling.reconciler import AutoscalingReconciler
from reconcilers.predicates import change_of, generation_of, more_than_progress
from reconcilers.runtime.clock import Clock
from reconcilers.runtime.kinds import ELASTICJOBS, ELASTICWORKERS
from reconcilers.runtime.managed_by import OfOurJobs, own_key
from reconcilers.runtime.reconciled import reporter

WORKERS = 8


def add(manager: Manager, clock: Clock) -> None:
    """Register the controller with the manager."""
    jobs = manager.cache.store(ELASTICJOBS)

    def growing_job(worker: Object) -> Iterable[Request]:
        """The job of the worker, if it grows by itself."""
        namespace, name = worker["metadata"]["namespace"], worker["spec"].get("jobName") or ""
        job = jobs.get(namespace, name)
        grows = job is not None and (job["spec"].get("elasticPolicy") or {}).get("opportunistic")
        return [Request(namespace, name)] if grows else []

    reconciler = AutoscalingReconciler(manager.client, manager.cache, manager.recorder, clock)
    (
        ControllerBuilder(manager, "autoscaling")
        .for_(ELASTICJOBS, predicate=more_of_its_size)
        .watches(ELASTICWORKERS, growing_job, predicate=more_than_progress)
        .reports_to(reporter(manager, "autoscaling", ELASTICJOBS, clock))
        .with_workers(WORKERS)
        .build(OfOurJobs(reconciler, manager.cache, ELASTICJOBS, own_key))
    )


_OF_STATUS = (
    *("phase", "scaling", "scaleRequest", "growth", "usage", "profile"),
    *("activeCheck", "migrations", "lastFailure", "cluster"),
)
_OF_WORLD = ("round", "phase")


@change_of
def more_of_its_size(job: Object) -> object:
    """What a job is asked for, what is kept of its size, and whether its world trains: no counts of Pods."""
    status, metadata = job.get("status") or {}, job["metadata"]
    world = status.get("rendezvous") or {}
    return (
        generation_of(job),
        metadata.get("deletionTimestamp"),
        (metadata.get("annotations") or {}).get(names.ANNOTATION_SCALE),
        *(status.get(field) for field in _OF_STATUS),
        *(world.get(field) for field in _OF_WORLD),
        [each["type"] for each in status.get("warnings") or ()],
    )
