"""Who stands by: the workers beside the world that could step into a lost one's place at once. Pure."""

from __future__ import annotations

from collections.abc import Collection, Sequence

from crds import names
from crds.agent_report import AgentState
from crds.elasticjob import ElasticJob
from crds.elasticworker import ElasticWorker, WorkerPhase
from crds.phases import RendezvousPhase
from crds.rendezvous import Rendezvous
from reconcilers.observed.slots import present_slots
from reconcilers.observed.worker_state import current_report

_IDLE = (AgentState.READY, AgentState.FAILED)


def standing_by(job: ElasticJob, workers: Sequence[ElasticWorker], world: Rendezvous) -> frozenset[int]:
    """Indices; none in a job that asks for none, or has no world yet."""
    spec = job.spec.replica_specs.get(names.WORKER)
    if spec is None or not spec.standby or world.phase is RendezvousPhase.FORMING:
        return frozenset()
    beside = set(present_slots(job, names.WORKER)).difference(world.members)
    return frozenset(w.spec.index for w in workers if w.spec.type == names.WORKER and _is_idle(w)) & beside


def needs_standby_update(workers: Sequence[ElasticWorker], standing: Collection[int]) -> list[ElasticWorker]:
    """The workers whose status does not say yet whether they stand by."""
    training = (w for w in workers if w.spec.type == names.WORKER)
    return [w for w in training if bool(w.status.standby) != (w.spec.index in standing)]


def _is_idle(worker: ElasticWorker) -> bool:
    report = current_report(worker)
    return worker.status.phase is WorkerPhase.RUNNING and report is not None and report.state in _IDLE
