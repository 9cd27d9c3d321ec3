"""A job's ElasticWorkers, one a slot of each type: indexed once a look, and which of them there should be."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, overload

from crds import names
from crds.elasticjob import ElasticJob, Rendezvous, RendezvousPhase
from crds.elasticworker import AgentState, ElasticWorker, WorkerPhase
from crds.protocol import PROTOCOL
from reconcilers.pod.builder import labels, owner_reference
from reconcilers.world.slots import Slot, present_slots, training_types


class Workers(Sequence[ElasticWorker]):
    """A job's workers in rank order. Each index is made when it is first asked for, in one pass."""

    def __init__(self, workers: Iterable[ElasticWorker]) -> None:
        self._all = tuple(sorted(workers, key=lambda worker: worker.spec.index))

    @overload
    def __getitem__(self, place: int) -> ElasticWorker: ...
    @overload
    def __getitem__(self, place: slice) -> Sequence[ElasticWorker]: ...
    def __getitem__(self, place: int | slice) -> ElasticWorker | Sequence[ElasticWorker]:
        return self._all[place]

    def __len__(self) -> int:
        return len(self._all)

    def __iter__(self) -> Iterator[ElasticWorker]:
        return iter(self._all)

    @cached_property
    def of_type(self) -> Mapping[str, Sequence[ElasticWorker]]:
        found: dict[str, list[ElasticWorker]] = {}
        for worker in self._all:
            found.setdefault(worker.spec.type, []).append(worker)
        return found

    @property
    def training(self) -> Sequence[ElasticWorker]:
        """Those that make up the world."""
        return self.of_type.get(names.WORKER, ())

    @cached_property
    def by_slot(self) -> Mapping[Slot, ElasticWorker]:
        return {slot_of(worker): worker for worker in self._all}

    @cached_property
    def exceptional(self) -> Sequence[ElasticWorker]:
        """All but those that simply run: policies about failures, waits and old agents need no others."""
        return tuple(worker for worker in self._all if not simply_runs(worker))

    @cached_property
    def telling_steps(self) -> Sequence[ElasticWorker]:
        """Those whose agents have told of a round's steps: what is known of steps, others do not change."""
        reports = ((worker, worker.status.agent) for worker in self._all)
        return tuple(worker for worker, report in reports if report is not None and report.rounds)

    def without(self, uids: Collection[str]) -> Workers:
        return Workers(w for w in self._all if w.metadata.uid not in uids) if uids else self


def simply_runs(worker: ElasticWorker) -> bool:
    """Its Pod and its agent run, nothing ever failed, and nothing else is to be said of it."""
    status, report = worker.status, worker.status.agent
    return (
        status.phase is WorkerPhase.RUNNING
        and status.last_exit is None
        and status.failure_budget is None
        and not status.standby
        and report is not None
        and report.failure is None
        and report.protocol >= PROTOCOL
        and report.state is not AgentState.SUCCEEDED
    )


def slot_of(worker: ElasticWorker) -> Slot:
    return worker.spec.type, worker.spec.index


@dataclass(frozen=True)
class WorkerPlan:
    missing: tuple[Slot, ...]
    """The slots to make."""
    surplus: tuple[ElasticWorker, ...]
    """Slots that nobody wants and no formed world has."""


def plan_workers(job: ElasticJob, workers: Workers, published: Rendezvous) -> WorkerPlan:
    wanted = [(type_, index) for type_ in training_types(job) for index in present_slots(job, type_)]
    missing = () if job.spec.suspend else tuple(slot for slot in wanted if slot not in workers.by_slot)
    members = published.members if published.phase is RendezvousPhase.FORMED else ()
    keep = {*wanted, *((names.WORKER, index) for index in members)}
    return WorkerPlan(missing, tuple(worker for slot, worker in workers.by_slot.items() if slot not in keep))


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
