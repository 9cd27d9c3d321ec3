"""The controller of jobs with replica groups, and the changes that trigger it."""

from __future__ import annotations

from controller.builder import ControllerBuilder
from controller.manager import Manager
from controller.resources import Object
from controller.store import Change
from crds.grouping import is_grouped
from reconcilers.groups.reconciler import ReplicaGroupsReconciler
from reconcilers.predicates import change_of
from reconcilers.runtime.kinds import ELASTICJOBS, ELASTICWORLDS
from reconcilers.runtime.managed_by import build_for_jobs
from reconcilers.runtime.tools import Tools

WORKERS = 8


def add(manager: Manager, tools: Tools) -> None:
    """Register the controller with the manager."""
    controller = ControllerBuilder(manager, "replicagroups")
    controller.for_(ELASTICJOBS, predicate=more_of_a_grouped_job)
    controller.owns(ELASTICJOBS, predicate=more_of_a_group).owns(ELASTICWORLDS)
    build_for_jobs(controller, ReplicaGroupsReconciler(tools), tools, WORKERS)


def more_of_a_grouped_job(change: Change) -> bool:
    """Whether a job has replica groups, or had them."""
    return any(each is not None and is_grouped(each) for each in (change.old, change.new))


_OF_GROUPS = (
    *("phase", "reason", "message", "replicaGroup", "restarts", "replicas", "replicaStatuses"),
    *("warnings", "failures", "lastFailure"),
)
_OF_WORLDS = ("round", "phase", "brokenRound", "masterAddress", "masterPort")


@change_of
def more_of_a_group(group: Object) -> object:
    """The parts of a replica group that concern its job: world, progress, troubles, end, and spec."""
    status, metadata = group.get("status") or {}, group["metadata"]
    world = status.get("rendezvous") or {}
    conditions = [(each["type"], each["status"], each["reason"]) for each in status.get("conditions") or ()]
    return (
        *(status.get(field) for field in _OF_GROUPS),
        *(world.get(field) for field in _OF_WORLDS),
        *(metadata.get(field) for field in ("generation", "labels", "annotations", "deletionTimestamp")),
        conditions,
        (status.get("goodput") or {}).get("ratio"),
    )
