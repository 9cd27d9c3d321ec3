"""More memory for a slot where a process was killed for want of it: twice as much, at most 8 GiB more a time.

What is raised is the limit, since passing it is what kills. The request grows in proportion: who asks for all
it may use (QoS class Guaranteed) goes on doing so, who asks for a quarter still asks for a quarter. With a
request alone, the request grows. Without either there is nothing to raise.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from crds.elasticjob import ElasticJob
from crds.elasticworker import ElasticWorker, ExitClass, WorkerPhase
from crds.model import ResourceRequirements
from reconcilers.pod.quantities import format_bytes, whole
from reconcilers.pod.resources import mapping, resources_of

MEMORY = "memory"
FACTOR = 2
MOST_A_STEP_BYTES = 8 * 2**30


@dataclass(frozen=True)
class Memory:
    """Of one container, in bytes; at least one of the two is set."""

    limit: int | None
    request: int | None

    @property
    def most(self) -> int:
        return self.limit or self.request or 0


@dataclass(frozen=True)
class RaisedMemory:
    """What the slot's next Pod is to have."""

    resources: ResourceRequirements
    """For `ElasticWorker.spec.resources`: what was there, with the new memory."""
    message: str


def raised_memory(
    job: ElasticJob,
    worker: ElasticWorker,
    workers: Iterable[ElasticWorker],
    nodes: Iterable[Mapping[str, Any]],
    *,
    in_place: bool = False,
) -> RaisedMemory | None:
    """For the next incarnation of `worker`; None if it did not run out of memory, or may have no more.

    Args:
        workers: all of the job's, who share in `spec.resourceLimits.memory`.
        nodes: as the API server has them. No Pod is given more than the largest could allocate.
        in_place: its Pod lives, and a process of it ran out of memory.
    """
    before = memory_of(job, worker)
    if before is None or not (in_place or _ran_out(worker)):
        return None
    others = [other for other in workers if other.metadata.uid != worker.metadata.uid]
    room, left = _largest_node(nodes), _left_of_limit(job, others)
    room = room if left is None else min(room, left)
    after = raised(before, room - _beside(job, worker))
    if after is None:
        return None
    message = (
        f"{worker.metadata.name} ran out of memory with {format_bytes(before.most)}: "
        f"its next Pod gets {format_bytes(after.most)}"
    )
    return RaisedMemory(_with_memory(worker.spec.resources, after), message)


def raised(before: Memory, room: int) -> Memory | None:
    """One step up, to at most `room` bytes; None if that is no more than before."""
    most = min(before.most * FACTOR, before.most + MOST_A_STEP_BYTES, room)
    if most <= before.most:
        return None
    request = None if before.request is None else -(-before.request * most // before.most)
    return Memory(limit=None if before.limit is None else most, request=request)


def memory_of(job: ElasticJob, worker: ElasticWorker) -> Memory | None:
    """In force for the slot's next Pod, unless it is raised; None if nothing is said of it."""
    if worker.spec.type not in job.spec.replica_specs:
        return None
    resources = resources_of(job, worker.spec.type, worker.spec.resources)
    limit, request = (_bytes(resources.get(kind)) for kind in ("limits", "requests"))
    return Memory(limit, request) if limit or request else None


def _ran_out(worker: ElasticWorker) -> bool:
    status, end = worker.status, worker.status.last_exit
    return (
        status.phase is WorkerPhase.FAILED
        and status.observed_incarnation == worker.spec.incarnation
        and end is not None
        and end.incarnation == worker.spec.incarnation
        and end.exit_class is ExitClass.OOM
    )


def _largest_node(nodes: Iterable[Mapping[str, Any]]) -> int:
    return max((_bytes(node.get("status", {}).get("allocatable")) or 0 for node in nodes), default=0)


def _left_of_limit(job: ElasticJob, others: Sequence[ElasticWorker]) -> int | None:
    """What `spec.resourceLimits.memory`, which is for all Pods together, leaves for this one."""
    if MEMORY not in job.spec.resource_limits:
        return None
    allowed = _bytes(job.spec.resource_limits) or 0
    taken = sum(_beside(job, other) + _most(memory_of(job, other)) for other in others)
    return allowed - taken


def _most(memory: Memory | None) -> int:
    return memory.most if memory else 0


def _beside(job: ElasticJob, worker: ElasticWorker) -> int:
    """What the Pod's other containers ask for."""
    spec = job.spec.replica_specs.get(worker.spec.type)
    containers = spec.template["spec"]["containers"][1:] if spec else ()
    resources = [mapping(container.get("resources")) for container in containers]
    return sum(_bytes(each.get("requests")) or _bytes(each.get("limits")) or 0 for each in resources)


def _bytes(amounts: Any) -> int | None:
    """None if there is no memory among them, or what nobody can read."""
    quantity = mapping(amounts).get(MEMORY)
    try:
        return None if quantity is None else whole(quantity)
    except ValueError:
        return None


def _with_memory(own: ResourceRequirements | None, memory: Memory) -> ResourceRequirements:
    own = own or ResourceRequirements()
    new = {"limits": memory.limit, "requests": memory.request}
    return ResourceRequirements.model_validate(
        {
            kind: {**getattr(own, kind), **({} if amount is None else {MEMORY: format_bytes(amount)})}
            for kind, amount in new.items()
        }
    )
