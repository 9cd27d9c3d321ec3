"""Which ElasticWorkers a job should have: one a slot of each type."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from crds import names
from crds.elasticjob import ElasticJob, Rendezvous, RendezvousPhase
from crds.elasticworker import ElasticWorker
from reconcilers.job.status import training_types
from reconcilers.pod.builder import labels, owner_reference
from reconcilers.world.slots import present_slots


@dataclass(frozen=True)
class WorkerPlan:
    missing: tuple[tuple[str, int], ...]
    """(type, index) of the slots to make."""
    surplus: tuple[ElasticWorker, ...]
    """Slots that nobody wants and no formed world has."""


def plan_workers(job: ElasticJob, workers: Sequence[ElasticWorker], published: Rendezvous) -> WorkerPlan:
    wanted = [(type_, index) for type_ in training_types(job) for index in present_slots(job, type_)]
    present = {(worker.spec.type, worker.spec.index) for worker in workers}
    missing = () if job.spec.suspend else tuple(slot for slot in wanted if slot not in present)
    in_world = set(published.members) if published.phase is RendezvousPhase.FORMED else set()
    keep = set(wanted)
    surplus = tuple(
        worker
        for worker in workers
        if (worker.spec.type, worker.spec.index) not in keep
        and not (worker.spec.type == names.WORKER and worker.spec.index in in_world)
    )
    return WorkerPlan(missing, surplus)


def new_worker(job: ElasticJob, type_: str, index: int) -> dict[str, Any]:
    """The ElasticWorker object to create for a slot."""
    return {
        "apiVersion": names.API_VERSION,
        "kind": "ElasticWorker",
        "metadata": {
            "name": f"{job.metadata.name}-{type_}-{index}",
            "namespace": job.metadata.namespace,
            "labels": labels(job.metadata.name, type_, index),
            "ownerReferences": [owner_reference("ElasticJob", job.metadata.name, job.metadata.uid)],
        },
        "spec": {"jobName": job.metadata.name, "type": type_, "index": index, "incarnation": 1},
    }
