"""What wakes a look at a job's PodGroup."""

from __future__ import annotations

from controller.builder import ControllerBuilder
from controller.manager import Manager
from reconcilers.gang.gate import GangGate
from reconcilers.gang.reconciler import GangReconciler
from reconcilers.predicates import more_than_status
from reconcilers.runtime.clock import Clock
from reconcilers.runtime.kinds import ELASTICJOBS
from reconcilers.runtime.managed_by import OfOurJobs, own_key
from reconcilers.runtime.reconciled import reporter
from reconcilers.worker.assignment import Gate

WORKERS = 4


def add(manager: Manager, clock: Clock, gates: list[Gate]) -> None:
    """Register the controller with the manager, and the gate that Pods of gangs wait at."""
    gates.append(GangGate(manager.client, manager.cache.store(ELASTICJOBS), clock.monotonic))
    reconciler = GangReconciler(manager.client, manager.cache, manager.recorder)
    (
        ControllerBuilder(manager, "gang")
        .for_(ELASTICJOBS, predicate=more_than_status)
        .reports_to(reporter(manager, "gang", ELASTICJOBS, clock))
        .with_workers(WORKERS)
        .build(OfOurJobs(reconciler, manager.cache, ELASTICJOBS, own_key))
    )
