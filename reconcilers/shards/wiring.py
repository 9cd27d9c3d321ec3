"""The controller of shard sets, and the changes that trigger it."""

from __future__ import annotations

from controller.builder import ControllerBuilder
from controller.manager import Manager
from controller.resources import Object
from controller.store import Change
from reconcilers.observed.containers import has_ended
from reconcilers.observed.ownership import BY_OWNER, owner_uids
from reconcilers.predicates import change_of, without_report
from reconcilers.runtime.kinds import ELASTICJOBS, ELASTICWORKERS, SHARDSETS
from reconcilers.runtime.managed_by import build_for_jobs
from reconcilers.runtime.tools import Tools
from reconcilers.shards.metrics import ShardMetrics
from reconcilers.shards.reconciler import (
    BY_PULLED_JOB,
    ShardsReconciler,
    job_of_puller,
    owners_of_pullers,
)

WORKERS = 4


def add(manager: Manager, tools: Tools) -> None:
    """Register the controller with the manager."""
    cache = manager.cache
    cache.add_index(ELASTICWORKERS, BY_PULLED_JOB, owners_of_pullers)
    cache.add_index(SHARDSETS, BY_OWNER, owner_uids)
    reconciler = ShardsReconciler(tools)

    def wakes(change: Change) -> bool:
        reconciler.note_deletion(change)
        return more_of_a_puller(change)

    controller = ControllerBuilder(manager, "shards").for_(ELASTICJOBS, predicate=more_of_a_pulled_job)
    controller.owns(SHARDSETS).watches(ELASTICWORKERS, job_of_puller, predicate=wakes)
    build_for_jobs(controller, reconciler, tools, WORKERS)
    manager.metrics_registry.register(ShardMetrics(cache, lambda: manager.is_leader))


@change_of
def more_of_a_pulled_job(job: Object) -> object:
    """The parts of a job that concern its shard sets: spec, end, groups, and the last scale request."""
    status, metadata = job.get("status") or {}, job["metadata"]
    groups = [(each.get("uid"), each.get("phase")) for each in status.get("groups") or ()]
    seen = (metadata["uid"], metadata.get("generation"), metadata.get("deletionTimestamp"))
    return *seen, has_ended(job), status.get("scaleRequest"), groups


@change_of
def more_of_a_puller(worker: Object) -> object:
    """The parts of a worker that concern the sets from which it pulls: its life, and its requests."""
    report = (worker.get("status") or {}).get("agent") or {}
    return (without_report(worker), _requests(report)) if report.get("shards") else None


def _requests(report: Object) -> list[Object]:
    """The sets in a report, with the progress of a lease only if the worker wants another or leaves it."""
    return [
        each if each.get("wants") or each.get("leaves") else {k: v for k, v in each.items() if k != "rest"}
        for each in report.get("shards") or ()
    ]
