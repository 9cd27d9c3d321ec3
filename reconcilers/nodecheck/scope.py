"""The nodes of a check, those that take part, and the worker that tests each. Pure."""

from __future__ import annotations

import hashlib
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Any

from crds import names
from crds.agent_report import AgentState
from crds.elasticjob import ElasticJob
from crds.elasticworker import ElasticWorker
from crds.grouping import group_name
from crds.nodecheck import MAX_NODES, NodeCheck, NodeCheckSpec
from crds.phases import RendezvousPhase
from crds.rendezvous import Rendezvous
from healthcheck.settings import Settings
from reconcilers.observed.builder import check_labels, owner_reference
from reconcilers.observed.worker_state import current_report
from reconcilers.runtime.clock import LONG_AGO

LEAST_PARTNERS = Settings().failed.witnesses
"""Witnesses required to find one new node faulty."""

MAX_STEM = 45
"""Characters of a check's name in its Pods' names: `-check-`, an index and a number follow, 63 in all."""

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
class CheckRefusal:
    reason: FailedReason
    message: str
    """One sentence."""


@dataclass(frozen=True)
class Candidate:
    """A node that may take part, and the worker that would test it."""

    node: str
    worker: int
    incarnation: int


@dataclass(frozen=True)
class Scope:
    participants: tuple[Candidate, ...]
    """Nodes that take part, in rank order."""
    reused: tuple[str, ...]
    """Nodes that passed a check which is still fresh."""
    left_out: tuple[str, ...] = ()
    """Nodes that are not tested, since they passed lately and are not needed as partners."""

    @property
    def nodes(self) -> tuple[str, ...]:
        return tuple(participant.node for participant in self.participants)

    def __str__(self) -> str:
        """The scope in words, for an Event."""
        text = f"{len(self.participants)} nodes" if len(self.participants) > 1 else f"node {self.nodes[0]}"
        if self.reused:
            text += f", {len(self.reused)} of them have passed lately"
        return f"{text}; {len(self.left_out)} more passed lately and are left out" if self.left_out else text


def named_nodes(
    spec: NodeCheckSpec, labels: Mapping[str, Mapping[str, str]]
) -> tuple[str, ...] | CheckRefusal:
    """The nodes of a check by nodes or nodeSelector, by name.

    Args:
        labels: labels of the cluster's nodes, by name; a check by nodes needs only its own.
    """
    if spec.nodes is not None:
        unknown = sorted({*spec.nodes} - labels.keys())
        if unknown:
            which = "are no nodes" if len(unknown) > 1 else "is no node"
            return CheckRefusal(FailedReason.NODE_NOT_FOUND, f"there {which} {', '.join(unknown[:10])}")
        return tuple(dict.fromkeys(spec.nodes))
    wanted = (spec.node_selector or {}).items()
    found = tuple(sorted(name for name, theirs in labels.items() if wanted <= theirs.items()))
    if not found:
        selector = ",".join(f"{key}={value}" for key, value in wanted)
        message = f"no node has the labels {selector}" if selector else "no nodes"
        return CheckRefusal(FailedReason.NO_NODES, message)
    return found


def lost_job(check: NodeCheck, job: ElasticJob | None) -> CheckRefusal | None:
    """Why the check's job cannot be checked, or not any more; None if it can."""
    name = check.spec.job_name
    if job is None:
        return CheckRefusal(FailedReason.JOB_NOT_FOUND, f"there is no job {name}")
    if (job.metadata.creation_timestamp or LONG_AGO) > (check.metadata.creation_timestamp or LONG_AGO):
        message = f"job {name} is newer than the check, which was for an earlier job of that name"
        return CheckRefusal(FailedReason.JOB_NOT_FOUND, message)
    if job.status.finished:
        message = f"job {name} has finished, and has no workers to check"
        return CheckRefusal(FailedReason.JOB_FINISHED, message)
    if job.spec.elastic_policy.replica_groups is not None:
        group = group_name(job.metadata.name, 0)
        message = f"job {name} has its workers in replica groups: check each of these jobs, such as {group}"
        return CheckRefusal(FailedReason.NO_WORKERS, message)
    return None


def too_many(nodes: int) -> CheckRefusal:
    """The refusal of a check that has too many nodes."""
    message = (
        f"{nodes} nodes do not fit into one NodeCheck, which takes {MAX_NODES} at most, fewer with "
        "long names: check them in several, by nodes or nodeSelector"
    )
    return CheckRefusal(FailedReason.TOO_MANY_NODES, message)


def one_each(nodes: Iterable[str]) -> tuple[Candidate, ...]:
    """One candidate for each node, with a worker of its own."""
    return tuple(Candidate(node, index, 1) for index, node in enumerate(nodes))


def wanted_workers(spec: NodeCheckSpec, workers: Iterable[ElasticWorker]) -> tuple[ElasticWorker, ...]:
    """The job's workers that the check tests, by index."""
    wanted = None if spec.workers is None else set(spec.workers)
    chosen = (
        worker
        for worker in workers
        if worker.spec.type == names.WORKER and (wanted is None or worker.spec.index in wanted)
    )
    return tuple(sorted(chosen, key=lambda worker: worker.spec.index))


def is_idle(worker: ElasticWorker, world: Rendezvous) -> bool:
    """Whether the worker's agent has reported, and runs no training."""
    report = current_report(worker)
    if report is None or report.state not in IDLE:
        return False
    members = zip(world.members, world.incarnations, strict=False)
    in_world = (worker.spec.index, worker.spec.incarnation) in members
    return bool(worker.status.node_name) and not (world.phase is RendezvousPhase.FORMED and in_world)


def speakers(workers: Iterable[ElasticWorker]) -> tuple[Candidate, ...]:
    """The first worker on each node, by index."""
    by_node: dict[str, Candidate] = {}
    for worker in workers:
        node = worker.status.node_name
        if node:
            by_node.setdefault(node, Candidate(node, worker.spec.index, worker.spec.incarnation))
    return tuple(by_node.values())


def choose(candidates: Sequence[Candidate], fresh: Collection[str]) -> Scope:
    """All nodes that are not fresh, with as many fresh ones as partners; all nodes, if all are fresh."""
    stale = {candidate.node for candidate in candidates if candidate.node not in fresh}
    passed = [candidate.node for candidate in candidates if candidate.node in fresh]
    partners = passed[: max(len(stale), LEAST_PARTNERS)] if stale else passed
    taken = {*stale, *partners}
    return Scope(
        participants=tuple(candidate for candidate in candidates if candidate.node in taken),
        reused=tuple(partners),
        left_out=tuple(node for node in passed if node not in taken),
    )


def stem(name: str, most: int = MAX_STEM) -> str:
    """Return a prefix for other names: the name itself, or without dots, cut and with a digest."""
    if len(name) <= most and "." not in name:
        return name
    digest = hashlib.sha256(name.encode()).hexdigest()[:6]
    return f"{name.replace('.', '-')[: most - len(digest) - 1]}-{digest}"


def worker_name(check: str, index: int) -> str:
    """The name of the ElasticWorker at this index of a check of nodes."""
    return f"{stem(check)}-{names.CHECK}-{index}"


def new_check_worker(check: NodeCheck, index: int, node: str) -> dict[str, Any]:
    """The ElasticWorker object to create for one node of the check."""
    metadata = check.metadata
    return {
        "apiVersion": names.API_VERSION,
        "kind": "ElasticWorker",
        "metadata": {
            "name": worker_name(metadata.name, index),
            "namespace": metadata.namespace,
            "labels": check_labels(metadata.name, index),
            "ownerReferences": [owner_reference("NodeCheck", metadata.name, metadata.uid)],
        },
        "spec": {
            "checkName": metadata.name,
            "type": names.CHECK,
            "index": index,
            "incarnation": 1,
            "nodeName": node,
        },
    }
