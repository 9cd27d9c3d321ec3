"""Which reconciler is woken by what."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from controller.manager import Manager

from controller.builder import ControllerBuilder
from controller.reconciler import Request
from controller.resources import ELASTICJOBS, ELASTICWORKERS, LEASES, NODES, PODS
from crds import names
from reconcilers.clock import Clock
from reconcilers.elasticjob import ElasticJobReconciler
from reconcilers.worker import BY_JOB, BY_NODE, BY_OWNER, WorkerReconciler, job_keys, node_names, owner_uids

OURS = f"{names.LABEL_MANAGED_BY}={names.MANAGER}"
"""Pods and Leases are watched by this label: a cluster has many that are none of our business."""

JOB_WORKERS = 4
WORKER_WORKERS = 16


def add_all(manager: Manager) -> None:
    """Register every controller with the manager."""
    clock = Clock()
    cache = manager.cache
    cache.add_index(ELASTICWORKERS, BY_JOB, job_keys)
    cache.add_index(ELASTICWORKERS, BY_NODE, node_names)
    cache.add_index(PODS, BY_OWNER, owner_uids)
    workers = cache.store(ELASTICWORKERS)

    def workers_of_job(job: dict[str, Any]) -> Iterable[Request]:
        """Only what concerns Pods: suspension and the end. World changes are the agents' business."""
        metadata = job["metadata"]
        halted = ("Suspended", "Succeeded", "Failed")
        if not job["spec"].get("suspend") and job.get("status", {}).get("phase") not in halted:
            return []
        return _requests(workers.by_index(BY_JOB, f"{metadata['namespace']}/{metadata['name']}"))

    def workers_on_node(node: dict[str, Any]) -> Iterable[Request]:
        conditions = node.get("status", {}).get("conditions", ())
        if any(c["type"] == "Ready" and c["status"] == "True" for c in conditions):
            return []
        return _requests(workers.by_index(BY_NODE, node["metadata"]["name"]))

    jobs = ElasticJobReconciler(manager.client, cache, manager.recorder, clock)
    ControllerBuilder(manager, "elasticjob").for_(ELASTICJOBS).owns(ELASTICWORKERS).with_workers(
        JOB_WORKERS
    ).build(jobs)
    pods = WorkerReconciler(manager.client, cache, manager.recorder, manager.contact, clock)
    ControllerBuilder(manager, "elasticworker").for_(ELASTICWORKERS).owns(PODS).owns(LEASES).watches(
        ELASTICJOBS, workers_of_job
    ).watches(NODES, workers_on_node).with_workers(WORKER_WORKERS).build(pods)


def _requests(objects: Iterable[dict[str, Any]]) -> list[Request]:
    return [Request(o["metadata"]["namespace"], o["metadata"]["name"]) for o in objects]
