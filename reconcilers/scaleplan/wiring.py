"""The controller of ScalePlans, and the changes that trigger it."""

from __future__ import annotations

from controller.builder import ControllerBuilder
from controller.manager import Manager
from controller.resources import Object
from crds import names
from reconcilers.observed.containers import has_ended
from reconcilers.predicates import change_of, generation_of
from reconcilers.runtime.kinds import ELASTICJOBS, SCALEPLANS
from reconcilers.runtime.managed_by import build_for_jobs
from reconcilers.runtime.tools import Tools
from reconcilers.scale.permission import CountsFault
from reconcilers.scaleplan.reconciler import BY_OWNER_JOB, ScalePlanReconciler, owner_job, planned_job

WORKERS = 2


def add(manager: Manager, tools: Tools, counts_fault: CountsFault) -> None:
    """Register the controller with the manager."""
    manager.cache.add_index(SCALEPLANS, BY_OWNER_JOB, owner_job)
    controller = ControllerBuilder(manager, "scaleplan").for_(ELASTICJOBS, predicate=more_of_a_scaled_job)
    controller.watches(SCALEPLANS, planned_job, predicate=more_of_a_plan)
    build_for_jobs(controller, ScalePlanReconciler(tools, counts_fault), tools, WORKERS)


@change_of
def more_of_a_plan(plan: Object) -> object:
    """The parts of a plan that lead to a look: its spec, its verdict, and its deletion."""
    return generation_of(plan), plan.get("status", {}).get("phase"), plan["metadata"].get("deletionTimestamp")


@change_of
def more_of_a_scaled_job(job: Object) -> object:
    """The parts of a job that concern its plans: its last request, whether it is merged, and its end."""
    status, metadata = job.get("status", {}), job["metadata"]
    asked = (metadata.get("annotations") or {}).get(names.ANNOTATION_SCALE)
    return (
        metadata["uid"],
        metadata.get("deletionTimestamp"),
        has_ended(job),
        asked,
        status.get("scaleRequest"),
    )
