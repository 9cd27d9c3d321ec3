"""The progress of a job with parameter servers: its phase, its end, and missing Pods. Pure."""

from __future__ import annotations

from crds import names
from crds.agent_report import AgentState
from crds.elasticjob import ElasticJob
from crds.elasticworker import ElasticWorker, WorkerPhase
from crds.phases import JobPhase
from reconcilers.failure.budgets import Overdrawn
from reconcilers.failure.endings import spent_workers
from reconcilers.observed.slots import wanted_slots
from reconcilers.observed.worker_state import current_report, runs
from reconcilers.observed.workers import Workers

VITAL = (names.CHIEF, names.PS)
"""Types of which all Pods have to run for training."""
SPARE = (names.WORKER, names.EVALUATOR)
"""Types of which a Pod that has spent its budget does not fail the job."""
_HAS_RUN = (JobPhase.RUNNING, JobPhase.SCALING, JobPhase.RESTARTING)


def phase_of(job: ElasticJob, workers: Workers) -> JobPhase:
    """The phase of an unfinished job that runs, whatever its number of workers."""
    if not missing(job, workers):
        return JobPhase.RUNNING
    return JobPhase.RESTARTING if job.status.phase in _HAS_RUN else JobPhase.PENDING


def missing(job: ElasticJob, workers: Workers) -> list[str]:
    """The Pods that training needs and that do not run, such as `ps 1`."""
    vital = [(type_, index) for type_ in VITAL for index in wanted_slots(job, type_)]
    lacking = [f"{slot[0]} {slot[1]}" for slot in vital if not _does_its_part(workers.by_slot.get(slot))]
    wanted = wanted_slots(job, names.WORKER)
    there = any(_does_its_part(workers.by_slot.get((names.WORKER, index))) for index in wanted)
    return lacking if there or not wanted else [*lacking, "any worker"]


def _does_its_part(worker: ElasticWorker | None) -> bool:
    return runs(worker) or _is_done(worker)


def _is_done(worker: ElasticWorker | None) -> bool:
    if worker is None or worker.status.phase is WorkerPhase.SUCCEEDED:
        return worker is not None
    report = current_report(worker)
    return report is not None and report.state is AgentState.SUCCEEDED


def ending(job: ElasticJob, workers: Workers) -> str:
    """Message about the end of training: the chief's, or without one, all workers'; empty if it goes on."""
    ender = names.CHIEF if names.CHIEF in job.spec.replica_specs else names.WORKER
    slots = wanted_slots(job, ender)
    done = bool(slots) and all(_is_done(workers.by_slot.get((ender, index))) for index in slots)
    return f"{len(slots)} of type {ender} finished" if done else ""


def spare_workers(job: ElasticJob, workers: Workers) -> dict[str, Overdrawn]:
    """Return the workers that have spent their budget, by uid, and that the job can do without: the last ones
    of type worker it cannot."""
    spent = spent_workers(job, (each for each in workers.exceptional if each.spec.type in SPARE))
    wanted = frozenset(wanted_slots(job, names.WORKER))
    if any(w.spec.index in wanted and w.metadata.uid not in spent for w in workers.training):
        return spent
    training = {worker.metadata.uid for worker in workers.training}
    return {uid: excess for uid, excess in spent.items() if uid not in training}
