"""What wakes a look at a job with replica groups."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from controller.builder import ControllerBuilder
from controller.manager import Manager
from controller.reconciler import Request
from controller.resources import Object
from controller.store import Change
from crds.grouping import is_grouped
from reconcilers.groups.reconciler import BY_PULLED_JOB, ReplicaGroupsReconciler, owners_of_pullers
from reconcilers.observed.groups import group_of
from reconcilers.predicates import asked_of_shards, change_of, without_report
from reconcilers.runtime.clock import Clock
from reconcilers.runtime.kinds import ELASTICJOBS, ELASTICWORKERS, ELASTICWORLDS
from reconcilers.runtime.managed_by import OfOurJobs, own_key
from reconcilers.runtime.reconciled import reporter

WORKERS = 8


def add(manager: Manager, clock: Clock) -> None:
    """Register the controller with the manager."""
    manager.cache.add_index(ELASTICWORKERS, BY_PULLED_JOB, owners_of_pullers)
    jobs = manager.cache.store(ELASTICJOBS)

    def grouped_job(worker: dict[str, Any]) -> Iterable[Request]:
        """The job of the worker's replica group, if it is of one."""
        namespace = worker["metadata"]["namespace"]
        job = jobs.get(namespace, worker["spec"].get("jobName") or "")
        group = None if job is None else group_of(job)
        return [] if group is None else [Request(namespace, group.name)]

    reconciler = ReplicaGroupsReconciler(manager.client, manager.cache, manager.recorder, clock)
    (
        ControllerBuilder(manager, "replicagroups")
        .for_(ELASTICJOBS, predicate=more_of_a_grouped_job)
        .owns(ELASTICJOBS, predicate=more_of_a_group)
        .watches(ELASTICWORKERS, grouped_job, predicate=more_of_a_puller)
        .owns(ELASTICWORLDS)
        .reports_to(reporter(manager, "replicagroups", ELASTICJOBS, clock))
        .with_workers(WORKERS)
        .build(OfOurJobs(reconciler, manager.cache, ELASTICJOBS, own_key))
    )


def more_of_a_grouped_job(change: Change) -> bool:
    """A job with replica groups, or one that was."""
    return any(each is not None and is_grouped(each) for each in (change.old, change.new))


_OF_GROUPS = (
    *("phase", "reason", "message", "replicaGroup", "restarts", "replicas", "replicaStatuses"),
    *("warnings", "failures", "lastFailure"),
)
_OF_WORLDS = ("round", "phase", "brokenRound", "masterAddress", "masterPort")


@change_of
def more_of_a_group(group: Object) -> object:
    """What a job goes by of its replica group: world, progress of the processes, troubles, end, and spec."""
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


@change_of
def more_of_a_puller(worker: Object) -> object:
    """What a job goes by of a worker of its groups that pulls shards: its life, and what it asks for."""
    report = worker.get("status", {}).get("agent") or {}
    return (without_report(worker), asked_of_shards(report)) if report.get("shards") else None
