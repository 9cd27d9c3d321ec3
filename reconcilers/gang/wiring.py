"""The controller of jobs' PodGroups, and the changes that trigger it."""

from __future__ import annotations

from controller.builder import ControllerBuilder
from controller.manager import Manager
from controller.resources import Object
from controller.store import Change
from crds.names import WORKER
from reconcilers.gang.choice import GangChoice
from reconcilers.gang.gate import GangGate
from reconcilers.gang.reconciler import GangReconciler
from reconcilers.observed.containers import has_ended
from reconcilers.predicates import change_of, more_than_status
from reconcilers.runtime.kinds import ELASTICJOBS
from reconcilers.runtime.managed_by import build_for_jobs
from reconcilers.runtime.tools import Tools
from reconcilers.worker.assignment import Gate

WORKERS = 4


def add(manager: Manager, tools: Tools, gates: list[Gate]) -> None:
    """Register the controller with the manager, and the gate of gangs' Pods."""
    choice = GangChoice(tools.client, tools.cache.store(ELASTICJOBS), tools.clock.monotonic)
    gates.append(GangGate(tools, choice))
    controller = ControllerBuilder(manager, "gang").for_(ELASTICJOBS, predicate=concerns_gang)
    build_for_jobs(controller, GangReconciler(tools, choice), tools, WORKERS)


def concerns_gang(change: Change) -> bool:
    """Whether a job's desired state changed, its first worker's Pod started, or its last one ended."""
    return more_than_status(change) or _starts_or_stops(change)


@change_of
def _starts_or_stops(job: Object) -> object:
    status = job.get("status") or {}
    counts = (status.get("replicaStatuses") or {}).get(WORKER) or {}
    return not has_ended(job) and counts.get("active", 0) + counts.get("standby", 0) > 0
