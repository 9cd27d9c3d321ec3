"""Which workers get a new Pod: the next incarnation of their slot."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime

from crds import names
from crds.elasticjob import ElasticJob
from crds.elasticworker import ElasticWorker, ExitClass, WorkerPhase
from crds.failure_policy import FailureAction
from crds.phases import JobPhase, RendezvousPhase
from crds.rendezvous import Rendezvous
from reconcilers.nodecheck.job_checks import UNJUDGED, Standing

MAX_DELAY_SECONDS = 60.0
MAX_EXCLUDED_NODES = 16
MAX_FAULTY_NODES = 256
AVOIDED = frozenset({ExitClass.NODE_LOST, ExitClass.HARDWARE_ERROR, ExitClass.CHECK_FAILED})
"""Ends after which a slot would rather not come back to the same node."""


RESUMED = "the job is resumed while the Pod from before is on its way out"


@dataclass(frozen=True)
class Relaunch:
    worker: ElasticWorker
    excluded_nodes: tuple[str, ...]
    faulty_nodes: tuple[str, ...]
    reason: str


@dataclass(frozen=True)
class RelaunchPlan:
    relaunches: tuple[Relaunch, ...] = ()
    look_again_seconds: float | None = None


def delay_seconds(quick_exits: int) -> float:
    """0, 1, 2, 4 … 60: Pods that end by themselves soon after their start, in a row, wait ever longer."""
    return 0.0 if quick_exits <= 1 else min(2.0 ** min(quick_exits - 2, 10), MAX_DELAY_SECONDS)


def suspended_pods(job: ElasticJob, workers: Sequence[ElasticWorker]) -> frozenset[str]:
    """Uids of the workers of a job that is resumed whose Pod the suspension has ended, or still has to.

    Such a Pod is being deleted, and its agent leaves for the suspension that it saw: whatever the agent has
    reported, it joins no world, and that it has left is no success. Another Pod need not wait for that one's
    grace period, nor for a dead node.
    """
    if job.status.phase is not JobPhase.SUSPENDED or job.spec.suspend:
        return frozenset()
    return frozenset(
        worker.metadata.uid
        for worker in workers
        if worker.status.pod_uid is not None
        and worker.status.observed_incarnation == worker.spec.incarnation
        and worker.status.phase is not WorkerPhase.FAILED
    )


def plan_relaunches(
    workers: Sequence[ElasticWorker],
    rendezvous: Rendezvous,
    now: datetime,
    standing: Standing = UNJUDGED,
    renewed: Mapping[str, str] | None = None,
    avoiding: Collection[str] = (),
) -> RelaunchPlan:
    """The slots whose Pod has ended and is due to be replaced, or is on a node that was found faulty.

    Args:
        renewed: by uid, who is to have a new Pod for another reason, and for which.
        avoiding: who of them (by uid) would rather not come back to their node.
    """
    due, waits = [], []
    for worker in workers:
        faulty = standing.faulty.get(worker.spec.index) if worker.spec.type == names.WORKER else None
        wanted = faulty or (renewed or {}).get(worker.metadata.uid)
        reason = wanted or _reason(worker, rendezvous)
        if reason is None:
            continue
        wait = 0.0 if wanted else _remaining_delay(worker, now)
        if wait > 0:
            waits.append(wait)
        else:
            due.append(Relaunch(worker, _excluded(worker, avoiding), _faulty(worker, standing), reason))
    return RelaunchPlan(tuple(due), min(waits, default=None))


def _reason(worker: ElasticWorker, rendezvous: Rendezvous) -> str | None:
    status = worker.status
    if status.observed_incarnation != worker.spec.incarnation:
        return None  # the Worker reconciler has not looked at the newest incarnation yet
    if status.phase is WorkerPhase.FAILED and status.last_exit is not None:
        return f"{status.last_exit.exit_class}: {status.message}"
    if status.phase is WorkerPhase.SUCCEEDED and rendezvous.phase is RendezvousPhase.REFORMING:
        return "the world broke after this worker had finished; it is needed for the next"
    return None


def _remaining_delay(worker: ElasticWorker, now: datetime) -> float:
    last_exit = worker.status.last_exit
    if last_exit is None or worker.status.phase is not WorkerPhase.FAILED:
        return 0.0
    return delay_seconds(worker.status.quick_exits or 0) - (now - last_exit.time).total_seconds()


def _excluded(worker: ElasticWorker, avoiding: Collection[str]) -> tuple[str, ...]:
    nodes, end = list(worker.spec.excluded_nodes), worker.status.last_exit
    failed = worker.status.node_name if worker.metadata.uid in avoiding else None
    if end is not None and (end.exit_class in AVOIDED or end.action is FailureAction.REPLACE):
        failed = failed or end.node_name
    if failed:
        nodes = [node for node in nodes if node != failed] + [failed]
    return tuple(nodes[-MAX_EXCLUDED_NODES:])


def _faulty(worker: ElasticWorker, standing: Standing) -> tuple[str, ...]:
    """What was known for this slot and not refuted, and what is known now; the newest of it."""
    known = [node for node in worker.spec.faulty_nodes if node not in standing.cleared]
    found = set(standing.faulty_nodes)
    nodes = [*(node for node in known if node not in found), *standing.faulty_nodes]
    return tuple(nodes[-MAX_FAULTY_NODES:])
