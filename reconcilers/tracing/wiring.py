"""The controller of jobs' traces, and the changes that trigger it."""

from __future__ import annotations

import logging
import os
from collections.abc import Mapping

from controller.builder import ControllerBuilder
from controller.manager import Manager
from controller.resources import Object
from crds.trace import ENV_ENDPOINT
from reconcilers.predicates import change_of
from reconcilers.runtime.kinds import ELASTICJOBS, ELASTICWORKERS
from reconcilers.runtime.managed_by import OfOurJobs, own_key
from reconcilers.runtime.tools import Tools
from reconcilers.tracing.reconciler import TracingReconciler

log = logging.getLogger(__name__)


def add(manager: Manager, tools: Tools, environ: Mapping[str, str] = os.environ) -> None:
    """Register the controller with the manager if the environment names a collector."""
    if not environ.get(ENV_ENDPOINT):
        return
    try:
        from reconcilers.tracing.export import Collector
    except ImportError as error:
        log.error(
            "no trace is sent: %s is set, and %s is not installed: pip install 'dlr-training[otel]'",
            ENV_ENDPOINT,
            error.name,
        )
        return
    reconciler = TracingReconciler(tools, Collector().send)
    (
        ControllerBuilder(manager, "tracing")
        .for_(ELASTICJOBS, predicate=more_of_a_history)
        .owns(ELASTICWORKERS, predicate=more_of_lives_or_saves)
        .build(OfOurJobs(reconciler, manager.cache, ELASTICJOBS, own_key))
    )


@change_of
def more_of_a_history(job: Object) -> object:
    """A job's history and end."""
    status = job.get("status") or {}
    return job["metadata"]["uid"], status.get("history"), status.get("completionTime")


@change_of
def more_of_lives_or_saves(worker: Object) -> object:
    """A worker's Pods, and the last save of worker 0's script, since the others save the same steps."""
    status = worker.get("status") or {}
    progress = (status.get("agent") or {}).get("progress") or {}
    return status.get("history"), progress.get("checkpointStep") if worker["spec"]["index"] == 0 else None
