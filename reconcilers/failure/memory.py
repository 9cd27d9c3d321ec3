"""More memory for a slot where a process was killed for want of it: twice as much, at most 8 GiB more a time.

What is raised is the limit, since passing it is what kills. The request grows in proportion: who asks for all
it may use (QoS class Guaranteed) goes on doing so, who asks for a quarter still asks for a quarter. With a
request alone, the request grows. Without either there is nothing to raise. Where a LimitRange, a quota, a
webhook or the resources of the whole Pod refuse it for more memory, it gets what the one before it had.
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
"""Memory of a node for the Pods that every node has. What they ask for is not known; a Pod that leaves
nothing to them would never find a node."""
LEAST_SHARE = 16
"""Of a small node, one part in so many is left."""


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
    """What the slot's next Pod is to have."""

    resources: ResourceRequirements
    """The value of `ElasticWorker.spec.resources`: the present one with the new memory."""
    message: str
    before: int | None = None
    """Bytes of the present Pod, which ran out of them; None if the next one has no more."""

    @property
    def reason(self) -> str:
        """Return that of its Event."""
        return "MemoryRaised" if self.before else "MemoryNotRaised"


class MemoryRoom:
    """How much more a job's slots may have; counted once a look, and when the first of them asks."""

    def __init__(
        self, job: ElasticJob, workers: Iterable[ElasticWorker], nodes: Collection[Mapping[str, Any]]
    ) -> None:
        """
        Args:
            workers: all of the job's, who share in `spec.resourceLimits.memory`.
            nodes: as the API server has them. No Pod is given more than the largest could allocate to it
                that plainly may take it, or has had one of its type.
        """
        self._job = job
        self._workers = workers
        self._nodes = nodes
        self._most: dict[str, int] = {}
        """By type."""
        self._granted = 0
        """Bytes, in this look."""

    def changed_memory(self, worker: ElasticWorker, *, in_place: bool = False) -> MemoryChange | None:
        """Raise the next incarnation's memory, or take back what is refused; None if it did not run out of
        memory, or may have no more.

        Args:
            in_place: its Pod lives, and a process of it ran out of memory.
        """
        if (less := refused_with_more(self._job, worker)) is not None:
            return less
        before = memory_of(self._job, worker)
        if before is None or not (in_place or _ran_out(worker)):
            return None
        room = self._most_on_a_node(worker.spec.type)
        if self._left is not None:
            room = min(room, self._left - self._granted + _taken(self._job, worker))
        after = raised(before, room - _beside(self._job, worker))
        if after is None:
            return None
        self._granted += after.most - before.most
        message = (
            f"{worker.metadata.name} ran out of memory with {format_bytes(before.most)}: "
            f"its next Pod gets {format_bytes(after.most)}"
        )
        return MemoryChange(_with_memory(worker.spec.resources, after), message, before.most)

    def _most_on_a_node(self, type_: str) -> int:
        """Memory for a Pod of this type on the largest node that may take it; of all nodes, if none may."""
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
        """What `spec.resourceLimits.memory`, which is for all Pods together, leaves to be given."""
        if MEMORY not in self._job.spec.resource_limits:
            return None
        allowed = _bytes(self._job.spec.resource_limits) or 0
        return allowed - sum(_taken(self._job, worker) for worker in self._workers)


def raised(before: ContainerMemory, room: int) -> ContainerMemory | None:
    """One step up, to at most `room` bytes; None if that is no more than before."""
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
    """What its Pod has in all."""
    memory = memory_of(job, worker)
    return _beside(job, worker) + (memory.most if memory else 0)


def _beside(job: ElasticJob, worker: ElasticWorker) -> int:
    """What the Pod's other containers ask for."""
    spec = job.spec.replica_specs.get(worker.spec.type)
    containers = others_of(spec.template["spec"]) if spec else ()
    resources = [mapping(container.get("resources")) for container in containers]
    return sum(_bytes(each.get("requests")) or _bytes(each.get("limits")) or 0 for each in resources)


def _bytes(amounts: Any) -> int | None:
    """None if there is no memory among them, or what nobody can read."""
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
