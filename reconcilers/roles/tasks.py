"""`status.cluster`: the task of each slot, and the version. Pure.

A slot keeps its task for as long as it is wanted, and its successor takes it over, so that the variables of
others stay correct after their start.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from itertools import zip_longest

from crds import cluster as wire
from crds import names
from crds.agent_report import AgentState
from crds.cluster_status import ClusterStatus
from crds.elasticjob import ElasticJob
from crds.elasticworker import ElasticWorker
from reconcilers.observed.builder import grace_seconds
from reconcilers.observed.slots import Slot, wanted_slots
from reconcilers.observed.worker_state import current_report, runs
from reconcilers.runtime.acts import Event

MANY = 3
"""Limit of changes in a message, which counts the others."""
FOLLOW_SECONDS = 60.0
"""Time in which an agent receives a version, even if the API server was down for some time."""


def cluster_of(job: ElasticJob) -> wire.Cluster:
    """The published cluster, or before that the first one, for the variables of Pods."""
    return _cluster(job, job.status.cluster or next_cluster(job, {}))


def _cluster(job: ElasticJob, status: ClusterStatus) -> wire.Cluster:
    return wire.Cluster(
        job=job.metadata.name,
        namespace=job.metadata.namespace,
        version=status.version,
        tasks=status.tasks,
        ports={t: wire.first_port(spec.template) for t, spec in job.spec.replica_specs.items()},
        lost=status.lost,
    )


def counts_fault(job: ElasticJob, counts: Mapping[str, int]) -> str:
    """Why a cluster with these counts does not fit into TF_CONFIG; empty if it does, or only shrinks."""
    grows = any(count > job.spec.replica_specs[type_].replicas for type_, count in counts.items())
    return (config_fault(job, counts) or "") if grows else ""


def config_fault(job: ElasticJob, counts: Mapping[str, int] | None = None) -> str | None:
    """Why the job's cluster does not fit into TF_CONFIG; None if it does.

    Args:
        counts: counts in place of the job's, by type.
    """
    wanted = {type_: spec.replicas for type_, spec in job.spec.replica_specs.items()} | dict(counts or {})
    tasks = {type_: list(range(wanted[type_])) for type_ in wire.ROLES if type_ in wanted}
    if _fits(job, tasks):
        return None
    number, job_bytes = sum(map(len, tasks.values())), len(job.metadata.name)
    return (
        f"the addresses of {number} tasks do not fit into {names.ENV_TF_CONFIG}, which may have "
        f"{wire.MAX_CONFIG_BYTES >> 10} KiB. Each has the job's name twice ({job_bytes} characters), and "
        f"its namespace's ({len(job.metadata.namespace)}): shorten them, or request fewer workers"
    )


def _fits(job: ElasticJob, tasks: dict[str, list[int]]) -> bool:
    cluster = _cluster(job, ClusterStatus(version=1, tasks=tasks, incarnations=[]))
    return cluster.config_bytes() <= wire.MAX_CONFIG_BYTES


def next_cluster(job: ElasticJob, by_slot: Mapping[Slot, ElasticWorker]) -> ClusterStatus:
    """The cluster to publish."""
    known = job.status.cluster
    tasks = {
        type_: _tasks(job, type_, known.tasks.get(type_) if known else None, by_slot)
        for type_ in wire.ROLES
        if type_ in job.spec.replica_specs
    }
    known_workers = frozenset(known.tasks.get(names.WORKER, ()) if known else tasks.get(names.WORKER, ()))
    if not known_workers.issuperset(tasks.get(names.WORKER, ())) and not _fits(job, tasks):
        # A worker that joins a full cluster gets no task, since no process could start with a longer
        # variable. One that takes over another's task does: `MAX_CONFIG_BYTES` leaves room for that.
        tasks[names.WORKER] = tasks[names.WORKER][: len(known_workers)]
    servers = tasks[names.PS]
    found = [by_slot.get((names.PS, index)) for index in servers]
    incarnations = [
        worker.spec.incarnation if worker is not None else _absent(known, index)
        for index, worker in zip(servers, found, strict=True)
    ]
    lost = [index for index, worker in zip(servers, found, strict=True) if not runs(worker)]
    version = 1
    if known is not None:
        there = [now or before for before, now in zip_longest(known.incarnations, incarnations, fillvalue=0)]
        is_same = (known.tasks.get(names.PS), known.incarnations) == (servers, there)
        version = known.version if is_same else known.version + 1
    return ClusterStatus(version=version, tasks=tasks, incarnations=incarnations, lost=lost)


def _absent(known: ClusterStatus | None, index: int) -> int:
    """The incarnation of a server without an ElasticWorker, whose next one starts at 1 again.

    0 after one that ran, since its next Pod is another; for any other, nothing changes.
    """
    servers = known.tasks.get(names.PS, []) if known is not None else []
    if known is None or index not in servers:
        return 1
    return known.incarnations[servers.index(index)] if index in known.lost else 0


def _tasks(
    job: ElasticJob, type_: str, known: Sequence[int] | None, by_slot: Mapping[Slot, ElasticWorker]
) -> list[int]:
    """The tasks of a type: a new slot, for servers once it runs, takes a free task, or the next number."""
    wanted = wanted_slots(job, type_)
    if known is None:
        return list(wanted)
    before = frozenset(known)
    comes = (i for i in wanted if i not in before)
    new = [i for i in comes if type_ != names.PS or runs(by_slot.get((type_, i)))]
    stays, fresh = set(wanted), iter(new)
    kept = (index if index in stays else next(fresh, None) for index in known)
    return [*(index for index in kept if index is not None), *fresh]


def dated(known: ClusterStatus | None, cluster: ClusterStatus, now: datetime) -> ClusterStatus:
    """Return the cluster with the time when its version was first published."""
    is_same = known is not None and known.version == cluster.version
    since = known.since if known is not None and is_same else None
    return cluster.model_copy(update={"since": since or now})


@dataclass(frozen=True)
class Served:
    """Servers without a task that stay, since the chief still works with them, and may save."""

    uids: frozenset[str] = frozenset()
    seconds: float | None = None
    """Longest time that they still stay; None until the version without them is published."""


def still_served(
    job: ElasticJob, surplus: Iterable[ElasticWorker], chiefs: Iterable[ElasticWorker], now: datetime
) -> Served:
    """The servers that stay for the chief until it has followed the next version, at most for its grace
    period and `FOLLOW_SECONDS`."""
    cluster, chief = job.status.cluster, job.spec.replica_specs.get(names.CHIEF)
    servers = [worker for worker in surplus if worker.spec.type == names.PS]
    if cluster is None or chief is None or not servers:
        return Served()
    reports = (current_report(each) for each in chiefs if runs(each))
    versions = [r.observed_round for r in reports if r is not None and r.state is AgentState.RUNNING]
    tasks = cluster.tasks.get(names.PS, [])
    leaving = frozenset(worker.metadata.uid for worker in servers if worker.spec.index in tasks)
    if not any(versions):
        return Served()
    left = grace_seconds(chief.template["spec"]) + FOLLOW_SECONDS
    left -= (now - (cluster.since or now)).total_seconds()
    if left <= 0 or not any(0 < version < cluster.version for version in versions):
        return Served(leaving)
    return Served(frozenset(worker.metadata.uid for worker in servers), left)


def events(before: ClusterStatus | None, after: ClusterStatus) -> Iterator[Event]:
    """The Event of a new version, with its changes."""
    if before is None or before.version == after.version:
        return
    servers, earlier = after.tasks[names.PS], before.tasks.get(names.PS, [])
    pods = dict(zip(earlier, before.incarnations, strict=True))
    changes = [
        f"ps {index} gets another Pod" if index in pods else f"ps {index} is new"
        for index, incarnation in zip(servers, after.incarnations, strict=True)
        if pods.get(index) != incarnation
    ]
    changes += [f"ps {index} leaves" for index in earlier if index not in servers]
    more = [f"and {len(changes) - MANY} more changes"] if len(changes) > MANY else []
    message = f"version {after.version} of the cluster: {', '.join([*changes[:MANY], *more])}"
    yield Event("Normal", "ClusterChanged", message)
