"""The writes that a job's plan is made of, each with the Events that tell of it. Pure."""

from __future__ import annotations

from collections.abc import Collection, Iterator

from controller.resources import Object
from controller.wording import counted
from crds.elasticjob import ElasticJob
from crds.elasticworker import ElasticWorker
from reconcilers.failure.memory import MemoryRoom
from reconcilers.failure.policy import Renewal
from reconcilers.job.relaunch import Relaunch
from reconcilers.observed.slots import Slot
from reconcilers.observed.workers import new_worker
from reconcilers.runtime.acts import (
    Act,
    Event,
    Verb,
    create,
)
from reconcilers.runtime.kinds import ELASTICWORKERS


def created(job: ElasticJob, missing: Collection[Slot]) -> Iterator[Act]:
    event = Event("Normal", "WorkersCreated", f"created {counted(len(missing), 'worker')}")
    for number, (type_, index) in enumerate(missing, start=1):
        yield create(ELASTICWORKERS, new_worker(job, type_, index), *[event] * (number == len(missing)))


def standby_updated(worker: ElasticWorker, standing: Collection[int]) -> Act:
    metadata, body = worker.metadata, {"status": {"standby": worker.spec.index in standing or None}}
    return Act(Verb.PATCH, ELASTICWORKERS, metadata.name, metadata.namespace, body, subresource="status")


def relaunched(relaunch: Relaunch, room: MemoryRoom, renewal: Renewal | None = None) -> Act:
    """The next incarnation of a slot; refused if the slot was changed since it was read.

    Args:
        renewal: why, if it is for a failure of processes whose Pod lives.
    """
    worker, metadata = relaunch.worker, relaunch.worker.metadata
    spec: Object = {
        "incarnation": worker.spec.incarnation + 1,
        "excludedNodes": list(relaunch.excluded_nodes),
        "faultyNodes": list(relaunch.faulty_nodes),
        "replacedFor": renewal.exit_class.value if renewal else None,
    }
    message = f"{metadata.name} gets a new Pod, incarnation {spec['incarnation']}: {relaunch.reason}"
    events = [Event("Normal", "WorkerRelaunched", message)]
    raised = room.raised_memory(worker, in_place=renewal is not None and renewal.out_of_memory)
    if raised is not None:
        spec["resources"] = raised.resources.to_wire()
        events.append(Event("Normal", "MemoryRaised", raised.message))
    body = {"metadata": {"resourceVersion": metadata.resource_version}, "spec": spec}
    return Act(Verb.PATCH, ELASTICWORKERS, metadata.name, metadata.namespace, body, events=tuple(events))
