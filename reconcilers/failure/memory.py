"""Raises the memory of a slot whose process ran out of it: twice as much, but at most 8 GiB more each time.

The limit is raised, since the kernel kills processes at the limit. The request grows in proportion, so the
QoS class stays the same. With a request alone, the request grows. Without either there is nothing to raise.
If a LimitRange, a quota, a webhook or the resources of the whole Pod do not allow the next Pod more memory,
it gets as much as the one before it.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from crds.agent_report import FailureCause
from crds.elasticjob import ElasticJob
from crds.elasticworker import ElasticWorker, ExitClass, WorkerPhase
from crds.model import ResourceRequirements
from reconcilers.observed.resources import format_bytes, is_for_amount, mapping, resources_of, whole
from reconcilers.observed.suitable import Sizes, allocatable, amounts_of, may_take, others_of
from reconcilers.observed.worker_state import REFUSALS, stuck_by

MEMORY = "memory"
FACTOR = 2
MOST_A_STEP_BYTES = 8 * 2**30
LEFT_BYTES = 2 * 2**30
"""Memory of a node that is left to the Pods of DaemonSets, whose requests are unknown; a Pod that left
nothing to them would never find a node."""
LEAST_SHARE = 16
"""On a small node, only one part in so many is left to them."""


@dataclass(frozen=True)
class ContainerMemory:
    """Memory of one container, in bytes; at least one of the two is set."""

    limit: int | None
    request: int | None

    @property
    def most(self) -> int:
        return self.limit or self.request or 0


@dataclass(frozen=True)
class MemoryChange:
    """New memory of the slot's next Pod."""

    resources: ResourceRequirements
    """The value of `ElasticWorker.spec.resources`: the present one with the new memory."""
    message: str
    before: int | None = None
    """Bytes of the present Pod, which ran out of memory; None if the next one gets no more."""

    @property
    def reason(self) -> str:
        """Reason of its Event."""
        return "MemoryRaised" if self.before else "MemoryNotRaised"


class MemoryRoom:
    """Memory that a job's slots may have in addition; counted once per reconcile, if a slot needs it."""

    def __init__(
        self, job: ElasticJob, workers: Iterable[ElasticWorker], nodes: Collection[Mapping[str, Any]]
    ) -> None:
        """
        Args:
            workers: all workers of the job, which share `spec.resourceLimits.memory`.
            nodes: raw Nodes. A Pod gets no more than the largest node can allocate that certainly may take
                it, or has had one of its type.
        """
        self._job = job
        self._workers = workers
        self._nodes = nodes
        self._most: dict[str, int] = {}
        """Bytes on the largest node, by type."""
        self._granted = 0
        """Bytes granted in this reconcile."""

    def changed_memory(self, worker: ElasticWorker, *, in_place: bool = False) -> MemoryChange | None:
        """Raise the next incarnation's memory, or take a refused raise back; None if it did not run out of
        memory, or may have no more.

        Args:
            in_place: whether a process ran out of memory and its Pod lives.
        """
        if (less := refused_with_more(self._job, worker)) is not None:
            return less
        before = memory_of(self._job, worker)
        after = self.more_for(worker) if in_place or _ran_out(worker) else None
        if before is None or after is None:
            return None
        self._granted += after.most - before.most
        message = (
            f"{worker.metadata.name} ran out of memory with {format_bytes(before.most)}: "
            f"its next Pod gets {format_bytes(after.most)}"
        )
        return MemoryChange(_with_memory(worker.spec.resources, after), message, before.most)

    def more_for(self, worker: ElasticWorker) -> ContainerMemory | None:
        """Return one step more for its next Pod; None if it may have no more."""
        before = memory_of(self._job, worker)
        if before is None:
            return None
        room = self._most_on_a_node(worker.spec.type)
        if self._left is not None:
            room = min(room, self._left - self._granted + _taken(self._job, worker))
        return raised(before, room - _beside(self._job, worker))

    def _most_on_a_node(self, type_: str) -> int:
        """Return the memory for a Pod of this type on the largest node that may take it, or of all nodes."""
        if type_ not in self._most:
            spec = self._job.spec.replica_specs[type_]
            first = {"resources": resources_of(self._job, type_, None)}
            asked = amounts_of([first, *others_of(spec.template["spec"])])
            asked.pop(MEMORY, None)
            homes = {worker.status.node_name for worker in self._workers if worker.spec.type == type_}
            of_template = spec.template["spec"]
            found = [
                node
                for node in Sizes(self._nodes).with_room_for(asked)
                if mapping(node.get("metadata")).get("name") in homes or may_take(node, of_template, asked)
            ]
            largest = max((int(allocatable(node, MEMORY)) for node in found or self._nodes), default=0)
            self._most[type_] = largest - min(largest // LEAST_SHARE, LEFT_BYTES)
        return self._most[type_]

    @cached_property
    def _left(self) -> int | None:
        """Rest of `spec.resourceLimits.memory`, which is for all Pods together; None without that limit."""
        if MEMORY not in self._job.spec.resource_limits:
            return None
        allowed = _bytes(self._job.spec.resource_limits) or 0
        return allowed - sum(_taken(self._job, worker) for worker in self._workers)


def raised(before: ContainerMemory, room: int) -> ContainerMemory | None:
    """Return one step more, up to `room` bytes; None if that is no more than before."""
    most = min(before.most * FACTOR, before.most + MOST_A_STEP_BYTES, room)
    return None if most <= before.most else _scaled(before, most)


def _scaled(before: ContainerMemory, most: int) -> ContainerMemory:
    request = None if before.request is None else -(-before.request * most // before.most)
    return ContainerMemory(limit=None if before.limit is None else most, request=request)


def refused_with_more(job: ElasticJob, worker: ElasticWorker) -> MemoryChange | None:
    """Return the memory of the Pod that ran out of it, if the next one is refused for having more."""
    why, before = stuck_by(worker), worker.spec.memory_before
    if before is None or why is None or why.reason not in REFUSALS or not is_for_amount(why.message, MEMORY):
        return None
    now = memory_of(job, worker)
    if now is None or now.most <= before:
        return None
    message = f"{worker.metadata.name} gets {format_bytes(before)} of memory again: {why.message}"
    return MemoryChange(_with_memory(worker.spec.resources, _scaled(now, before)), message)


def memory_of(job: ElasticJob, worker: ElasticWorker) -> ContainerMemory | None:
    """Return the memory of the slot's next Pod, unless it is raised; None if the job sets none."""
    return _memory(job, worker.spec.type, worker.spec.resources)


def _memory(job: ElasticJob, type_: str, own: ResourceRequirements | None) -> ContainerMemory | None:
    if type_ not in job.spec.replica_specs:
        return None
    resources = resources_of(job, type_, own)
    limit, request = (_bytes(resources.get(kind)) for kind in ("limits", "requests"))
    return ContainerMemory(limit, request) if limit or request else None


def _ran_out(worker: ElasticWorker) -> bool:
    """Whether the training container, or a process in it, ran out of memory."""
    status, end = worker.status, worker.status.last_exit
    return (
        status.phase is WorkerPhase.FAILED
        and status.observed_incarnation == worker.spec.incarnation
        and end is not None
        and end.incarnation == worker.spec.incarnation
        and end.exit_class is ExitClass.OOM
        and not end.container
    )


def has_run_out(worker: ElasticWorker) -> bool:
    """Return whether a Pod of the worker, or a process, ran out of memory, however long ago."""
    end, report = worker.status.last_exit, worker.status.agent
    failure = None if report is None else report.failure
    return (end is not None and end.exit_class is ExitClass.OOM) or (
        failure is not None and failure.cause is FailureCause.OOM
    )


def _taken(job: ElasticJob, worker: ElasticWorker) -> int:
    """Return the memory of all containers of its Pod."""
    memory = memory_of(job, worker)
    return _beside(job, worker) + (memory.most if memory else 0)


def _beside(job: ElasticJob, worker: ElasticWorker) -> int:
    """Return the memory that the Pod's other containers request."""
    spec = job.spec.replica_specs.get(worker.spec.type)
    containers = others_of(spec.template["spec"]) if spec else ()
    resources = [mapping(container.get("resources")) for container in containers]
    return sum(_bytes(each.get("requests")) or _bytes(each.get("limits")) or 0 for each in resources)


def _bytes(amounts: Any) -> int | None:
    """Return the bytes of memory; None without any, or if the quantity is invalid."""
    quantity = mapping(amounts).get(MEMORY)
    try:
        return None if quantity is None else whole(quantity)
    except ValueError:
        return None


def _with_memory(own: ResourceRequirements | None, memory: ContainerMemory) -> ResourceRequirements:
    own = own or ResourceRequirements()
    new = {"limits": memory.limit, "requests": memory.request}
    return ResourceRequirements.model_validate(
        {
            kind: {**getattr(own, kind), **({} if amount is None else {MEMORY: format_bytes(amount)})}
            for kind, amount in new.items()
        }
    )
