"""Conditions of a job's life: whether it runs, has a world, ends, and has the workers that it wants. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from controller.wording import counted, held_by
from crds import names
from crds.elasticjob import ElasticJob
from crds.elasticworker import WorkerPhase
from crds.job_status import JobWarning
from crds.model import MAX_CONDITION_MESSAGE, Condition, ConditionStatus
from crds.phases import JobPhase, RendezvousPhase
from crds.texts import shortened
from reconcilers.conditions.pods import (
    WORKERS_GIVEN_UP,
    WORKERS_NOT_MADE,
    WORKERS_NOT_STARTED,
    WORKERS_UNSCHEDULED,
)
from reconcilers.failure.refusal import PODS_NOT_ACCEPTED
from reconcilers.look import DesiredJob, Judge
from reconcilers.observed.conditions import ConditionState, NextState, warning_of
from reconcilers.observed.slots import extra_slots, present_slots, training_types
from reconcilers.runtime.acts import Event

RUNNING, SUCCEEDED, FAILED, SUSPENDED = "Running", "Succeeded", "Failed", "Suspended"
WORLD_FORMED, WORKERS_READY = "WorldFormed", "WorkersReady"
NO_REPLICAS = "NoReplicas"
NO_REPLICAS_MESSAGE = "replicas is 0, so the job has no Pods: raise replicas in spec.replicaSpecs to start it"
MAX_WHY = 96
"""Most characters of the world's reason in a condition; the world itself has all of it."""
ENDED = "the job has ended"
HINDRANCES = (PODS_NOT_ACCEPTED, WORKERS_NOT_MADE, WORKERS_NOT_STARTED, WORKERS_UNSCHEDULED)
"""Warnings that say why workers do not run, the most serious first."""
TRUE, FALSE = ConditionStatus.TRUE, ConditionStatus.FALSE


def running(_: Condition | None, look: DesiredJob) -> ConditionState:
    status = TRUE if look.phase is JobPhase.RUNNING else FALSE
    wants_pods = any(spec.replicas or spec.standby for spec in look.job.spec.replica_specs.values())
    if look.phase.finished or wants_pods:
        return ConditionState(status, look.phase.value)
    return ConditionState(status, NO_REPLICAS, NO_REPLICAS_MESSAGE)


def no_replicas(_: Condition | None, new: Condition) -> Event | None:
    return Event("Normal", NO_REPLICAS, new.message) if new.reason == NO_REPLICAS else None


def why_stopped(job: ElasticJob) -> str:
    """Return why a job has no Pods."""
    if job.spec.suspend:
        return "the job is suspended"
    if job.metadata.deletion_timestamp is None and job.status.admission is not None:
        return f"the queue {job.status.admission.queue} grants no Pods: {job.status.admission.message}"
    if why := held_by(job.metadata.finalizers):
        return f"the job is deleted, {why}"
    return "the job is being deleted"


def suspension(before: Condition | None, job: ElasticJob) -> ConditionState | None:
    if job.stops:
        return ConditionState(TRUE, "Suspended", "" if job.spec.suspend else why_stopped(job))
    return None if before is None else ConditionState(FALSE, "Resumed")


def suspended(before: Condition | None, look: DesiredJob) -> ConditionState | None:
    return suspension(before, look.job)


def world_formed(_: Condition | None, look: DesiredJob) -> ConditionState:
    status = TRUE if look.world.phase is RendezvousPhase.FORMED else FALSE
    return ConditionState(status, look.world.phase.value, shortened(look.world.why, MAX_WHY))


def world_at_end(before: Condition | None, look: DesiredJob) -> NextState:
    """Judge the world at the end. If it was not formed, its reason stays, as a possible cause of the end."""
    if before is None:
        return None
    if before.status is not FALSE:
        return ConditionState(FALSE, look.phase.value, ENDED)
    return ConditionState(FALSE, before.reason, shortened(look.world.why, MAX_WHY), before.data)


def workers_ready(_: Condition | None, look: DesiredJob) -> ConditionState:
    """Judge whether all wanted Pods of the job run. Its warnings say more about each hindrance."""
    found = list(hindrances(look.warnings))
    if found:
        return ConditionState(FALSE, found[0].reason or found[0].type, "; ".join(map(_in_short, found)))
    if not look.goes_on:
        return ConditionState(FALSE, look.phase.value)
    if (missing := _missing(look)) > 0:
        return ConditionState(FALSE, "Starting", f"{counted(missing, 'worker')} not running yet")
    if (exhausted := warning_of(look.warnings, WORKERS_GIVEN_UP)) is not None:
        return ConditionState(FALSE, WORKERS_GIVEN_UP, _in_short(exhausted))
    return ConditionState(TRUE, "AllRunning")


def hindrances(warnings: Iterable[JobWarning]) -> Iterator[JobWarning]:
    """Yield the warnings that say why workers do not run, the most serious first."""
    found = {warning.type: warning for warning in warnings}
    for type_ in HINDRANCES:
        if (warning := found.get(type_)) is not None:
            yield warning


def _in_short(warning: JobWarning) -> str:
    return f"{warning.type} ({warning.reason})" if warning.reason else warning.type


def _missing(look: DesiredJob) -> int:
    """Return the number of wanted Pods that do not run.

    Workers that get no further Pod do not count, nor do extra workers, which are expected to wait.
    """
    job, workers = look.job, look.workers
    wanted = {type_: frozenset(present_slots(job, type_)) for type_ in training_types(job)}
    if names.WORKER in wanted:
        wanted[names.WORKER] -= extra_slots(job)
    absent = sum(len(slots.difference(workers.by_index.get(type_, ()))) for type_, slots in wanted.items())
    idle = [
        worker
        for worker in workers.exceptional
        if worker.spec.index in wanted.get(worker.spec.type, ())
        and worker.status.phase not in (WorkerPhase.RUNNING, WorkerPhase.SUCCEEDED)
        and worker.metadata.uid not in look.exhausted_workers
    ]
    return absent + len(idle)


def wait_at_end(before: Condition | None, _: DesiredJob) -> NextState:
    """Judge at the end: a False condition stays, as a possible cause of it, without a wait."""
    if before is None or before.status is not FALSE:
        return before
    message = shortened(f"{ENDED}; {before.message}", MAX_CONDITION_MESSAGE)
    return ConditionState(FALSE, before.reason, message, before.data)


def end_in(phase: JobPhase) -> Judge:
    return lambda before, look: look.end if look.phase is phase else before
