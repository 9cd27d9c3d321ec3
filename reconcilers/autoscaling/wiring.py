"""The controller of jobs' sizes, and the changes that trigger it."""

from __future__ import annotations

from controller.builder import ControllerBuilder
from controller.manager import Manager
from reconcilers.autoscaling.reconciler import AutoscalingReconciler
from reconcilers.predicates import more_than_progress
from reconcilers.runtime.kinds import ELASTICJOBS, ELASTICWORKERS
from reconcilers.runtime.managed_by import build_for_jobs
from reconcilers.runtime.tools import Tools

WORKERS = 8


def add(manager: Manager, tools: Tools) -> None:
    """Register the controller with the manager. Most looks end at once: it sizes few jobs."""
    controller = ControllerBuilder(manager, "autoscaling").for_(ELASTICJOBS)
    controller.owns(ELASTICWORKERS, predicate=more_than_progress)
    build_for_jobs(controller, AutoscalingReconciler(tools), tools, WORKERS)
