"""Which nodes a check is of, which of them take part, and who speaks for each. Pure."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum

from crds import names
from crds.elasticjob import Rendezvous, RendezvousPhase
from crds.elasticworker import AgentState, ElasticWorker
from crds.nodecheck import NodeCheckSpec
from reconcilers.pod.worker_status import current_report

LEAST_PARTNERS = 2
"""One new node takes two witnesses to be found faulty."""

IDLE = (AgentState.READY, AgentState.FAILED)


class FailedReason(StrEnum):
    """Why a check cannot be carried out."""

    NO_NODES = "NoNodes"
    NODE_NOT_FOUND = "NodeNotFound"
    JOB_NOT_FOUND = "JobNotFound"
    JOB_FINISHED = "JobFinished"
    NO_WORKERS = "NoWorkers"
    TOO_MANY_NODES = "TooManyNodes"


@dataclass(frozen=True)
class Refusal:
    reason: FailedReason
    message: str
    """One sentence."""


@dataclass(frozen=True)
class Candidate:
    """A node that may take part, and the worker that would speak for it."""

    node: str
    worker: int
    incarnation: int


@dataclass(frozen=True)
class Scope:
    participants: tuple[Candidate, ...]
    """In rank order."""
    reused: tuple[str, ...]
    """Those of their nodes that passed a check which is still fresh."""
    left_out: tuple[str, ...] = ()
    """Nodes that are not tested, because they passed lately and nobody needs them as partners."""

    @property
    def nodes(self) -> tuple[str, ...]:
        return tuple(participant.node for participant in self.participants)

    def __str__(self) -> str:
        """For people."""
        text = f"{len(self.participants)} nodes" if len(self.participants) > 1 else f"node {self.nodes[0]}"
        if self.reused:
            text += f", {len(self.reused)} of them have passed lately"
        return f"{text}; {len(self.left_out)} more passed lately and are left out" if self.left_out else text


def named_nodes(spec: NodeCheckSpec, labels: Mapping[str, Mapping[str, str]]) -> tuple[str, ...] | Refusal:
    """The nodes of a check by nodes or nodeSelector.

    Args:
        spec: with one of the two.
        labels: of all nodes of the cluster, by name.
    """
    if spec.nodes is not None:
        unknown = sorted({*spec.nodes} - labels.keys())
        if unknown:
            which = "are no nodes" if len(unknown) > 1 else "is no node"
            return Refusal(FailedReason.NODE_NOT_FOUND, f"there {which} {', '.join(unknown[:10])}")
        return tuple(dict.fromkeys(spec.nodes))
    wanted = (spec.node_selector or {}).items()
    found = tuple(sorted(name for name, theirs in labels.items() if wanted <= theirs.items()))
    if not found:
        selector = ",".join(f"{key}={value}" for key, value in wanted)
        return Refusal(
            FailedReason.NO_NODES, f"no node has the labels {selector}" if selector else "no nodes"
        )
    return found


def one_each(nodes: Iterable[str]) -> tuple[Candidate, ...]:
    """A worker of its own for each node."""
    return tuple(Candidate(node, index, 1) for index, node in enumerate(nodes))


def wanted_workers(spec: NodeCheckSpec, workers: Iterable[ElasticWorker]) -> tuple[ElasticWorker, ...]:
    """Those of a job's workers that the check is of, by index."""
    wanted = None if spec.workers is None else set(spec.workers)
    chosen = (
        worker
        for worker in workers
        if worker.spec.type == names.WORKER and (wanted is None or worker.spec.index in wanted)
    )
    return tuple(sorted(chosen, key=lambda worker: worker.spec.index))


def is_idle(worker: ElasticWorker, world: Rendezvous) -> bool:
    """Whether its agent is there, and has nothing to run."""
    report = worker.status.agent
    if report is None or not current_report(worker) or report.state not in IDLE:
        return False
    members = zip(world.members, world.incarnations, strict=False)
    in_world = (worker.spec.index, worker.spec.incarnation) in members
    return bool(worker.status.node_name) and not (world.phase is RendezvousPhase.FORMED and in_world)


def speakers(workers: Iterable[ElasticWorker]) -> tuple[Candidate, ...]:
    """Of workers by index, the first on each node."""
    by_node: dict[str, Candidate] = {}
    for worker in workers:
        node = worker.status.node_name
        if node:
            by_node.setdefault(node, Candidate(node, worker.spec.index, worker.spec.incarnation))
    return tuple(by_node.values())


def choose(candidates: Sequence[Candidate], fresh: Collection[str]) -> Scope:
    """Everybody who is not fresh, and as many fresh ones for partners; all, if all are fresh."""
    stale = {candidate.node for candidate in candidates if candidate.node not in fresh}
    passed = [candidate.node for candidate in candidates if candidate.node in fresh]
    partners = passed[: max(len(stale), LEAST_PARTNERS)] if stale else passed
    taken = {*stale, *partners}
    return Scope(
        participants=tuple(candidate for candidate in candidates if candidate.node in taken),
        reused=tuple(partners),
        left_out=tuple(node for node in passed if node not in taken),
    )
