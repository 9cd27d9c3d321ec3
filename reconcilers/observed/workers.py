"""A job's ElasticWorkers, one per slot of each type: indexed once per reconcile, and planned by its slots."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from operator import attrgetter
from typing import Any, overload

from crds import names
from crds.agent_report import PROTOCOL, AgentState
from crds.elasticjob import ElasticJob
from crds.elasticworker import ElasticWorker, WorkerPhase
from crds.phases import RendezvousPhase
from crds.rendezvous import Rendezvous
from reconcilers.observed.builder import labels, owner_reference
from reconcilers.observed.groups import group_labels
from reconcilers.observed.slots import Slot, present_slots, training_types
from reconcilers.observed.worker_state import AGENT_HEARD, HARDWARE_WELL, HEARTBEAT_ON_TIME, SIDECARS_WELL

ODD = frozenset((AGENT_HEARD, HARDWARE_WELL, HEARTBEAT_ON_TIME, SIDECARS_WELL))
"""Conditions of a worker that does not simply run."""


@dataclass(frozen=True)
class _Indexes:
    by_index: Mapping[str, Mapping[int, ElasticWorker]]
    of_type: Mapping[str, Sequence[ElasticWorker]]
    exceptional: Sequence[ElasticWorker]
    reporting_steps: Sequence[ElasticWorker]
    living_on: Sequence[ElasticWorker]


class Workers(Sequence[ElasticWorker]):
    """A job's workers in rank order.

    The first use of an index builds all of them in one pass: ten thousand workers are scattered over memory,
    and each further pass costs more than its work.
    """

    def __init__(self, workers: Iterable[ElasticWorker]) -> None:
        self._all = tuple(sorted(workers, key=attrgetter("spec.index")))

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
    def _indexes(self) -> _Indexes:
        by_index: defaultdict[str, dict[int, ElasticWorker]] = defaultdict(dict)
        of_type: defaultdict[str, list[ElasticWorker]] = defaultdict(list)
        exceptional, reporting_steps, living_on = [], [], []
        for worker in self._all:
            spec, report = worker.spec, worker.status.agent
            by_index[spec.type][spec.index] = worker
            of_type[spec.type].append(worker)
            if not simply_runs(worker):
                exceptional.append(worker)
            if report is not None and report.rounds:
                reporting_steps.append(worker)
            if report is not None and report.lived_on is not None:
                living_on.append(worker)
        return _Indexes(dict(by_index), dict(of_type), exceptional, reporting_steps, living_on)

    @property
    def by_index(self) -> Mapping[str, Mapping[int, ElasticWorker]]:
        """Workers by type, and then by index."""
        return self._indexes.by_index

    @property
    def of_type(self) -> Mapping[str, Sequence[ElasticWorker]]:
        return self._indexes.of_type

    @property
    def training(self) -> Sequence[ElasticWorker]:
        """Workers that make up the world."""
        return self.of_type.get(names.WORKER, ())

    @cached_property
    def by_slot(self) -> Mapping[Slot, ElasticWorker]:
        return {slot_of(worker): worker for worker in self._all}

    @property
    def exceptional(self) -> Sequence[ElasticWorker]:
        """Workers that do not simply run: policies about failures, waits and old agents need no others."""
        return self._indexes.exceptional

    @property
    def reporting_steps(self) -> Sequence[ElasticWorker]:
        """Workers whose agents have reported a round's steps; other workers change nothing about steps."""
        return self._indexes.reporting_steps

    @property
    def living_on(self) -> Sequence[ElasticWorker]:
        """Workers whose agents report processes that lived on into their newest round."""
        return self._indexes.living_on

    def rank_0(self, world: Rendezvous) -> ElasticWorker | None:
        """Return rank 0 of a world with members: mostly one of the first workers."""
        first = world.members[0]
        ranked = (worker for worker in self._all if worker.spec.type == names.WORKER)
        return next((worker for worker in ranked if worker.spec.index == first), None)

    def without(self, uids: Collection[str]) -> Workers:
        return Workers(w for w in self._all if w.metadata.uid not in uids) if uids else self


def simply_runs(worker: ElasticWorker) -> bool:
    """Whether its Pod and agent run, it never failed, and no condition is unusual."""
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
        and not any(condition.type in ODD for condition in status.conditions)
    )


def slot_of(worker: ElasticWorker) -> Slot:
    return worker.spec.type, worker.spec.index


def plan_workers(
    job: ElasticJob, workers: Workers, published: Rendezvous
) -> tuple[list[Slot], list[ElasticWorker]]:
    """Return the slots that lack a worker, and the workers whose slots neither job nor formed world has."""
    missing: list[Slot] = []
    surplus: list[ElasticWorker] = []
    wanted = {type_: present_slots(job, type_) for type_ in training_types(job)}
    members = published.members if published.phase is RendezvousPhase.FORMED else ()
    for type_ in dict.fromkeys((*wanted, *workers.by_index)):  # also those that the job has no more
        there = workers.by_index.get(type_, {})
        keep = {*wanted.get(type_, ()), *(members if type_ == names.WORKER else ())}
        missing += [(type_, index) for index in wanted.get(type_, ()) if index not in there]
        surplus += [worker for index, worker in there.items() if index not in keep]
    return [] if job.stops else missing, surplus


def worker_name(job: str, type_: str, index: int) -> str:
    """Return the name of the ElasticWorker of a job's slot."""
    return f"{job}-{type_}-{index}"


def new_worker(job: ElasticJob, type_: str, index: int, incarnation: int = 1) -> dict[str, Any]:
    """Return the ElasticWorker to create for a slot."""
    return {
        "apiVersion": names.API_VERSION,
        "kind": "ElasticWorker",
        "metadata": {
            "name": worker_name(job.metadata.name, type_, index),
            "namespace": job.metadata.namespace,
            "labels": labels(job.metadata.name, type_, index) | group_labels(job),
            "ownerReferences": [owner_reference("ElasticJob", job.metadata.name, job.metadata.uid)],
        },
        "spec": {"jobName": job.metadata.name, "type": type_, "index": index, "incarnation": incarnation},
    }
