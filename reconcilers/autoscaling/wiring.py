"""What wakes a look at the size of a job."""

from __future__ import annotations

from controller.builder import ControllerBuilder
from controller.manager import Manager
from reconcilers.autoscaling.reconciler import AutoscalingReconciler
from reconcilers.predicates import more_than_progress
from reconcilers.runtime.kinds import ELASTICJOBS, ELASTICWORKERS
from reconcilers.runtime.managed_by import OfOurJobs, own_key
from reconcilers.runtime.reconciled import ReconciledCondition
from reconcilers.runtime.tools import Tools

WORKERS = 8


def add(manager: Manager, tools: Tools) -> None:
    """Register the controller with the manager. Most looks end at once: few jobs are sized by it."""
    reconciler = AutoscalingReconciler(tools)
    (
        ControllerBuilder(manager, "autoscaling")
        .for_(ELASTICJOBS)
        .owns(ELASTICWORKERS, predicate=more_than_progress)
        .reports_to(ReconciledCondition(tools, "autoscaling", ELASTICJOBS))
        .with_workers(WORKERS)
        .build(OfOurJobs(reconciler, manager.cache, ELASTICJOBS, own_key))
    )
