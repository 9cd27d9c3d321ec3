"""Conditions of a job's training: `Running`, `WorldFormed`, `Suspended`, and its Pods. Pure."""

from __future__ import annotations

from collections.abc import Callable, Collection
from datetime import datetime

from controller.wording import counted, shortened
from crds import names
from crds.elasticworker import ElasticWorker, WorkerPhase
from crds.model import MAX_CONDITION_MESSAGE, Condition, ConditionData, ConditionStatus
from crds.phases import JobPhase, RendezvousPhase
from reconcilers.conditions.facts import Facts, Judge
from reconcilers.observed.conditions import NextState, State, condition_of, data_of
from reconcilers.observed.slots import extra_slots
from reconcilers.observed.worker_state import SIDECARS_WELL, hindered_by, stuck_by
from reconcilers.observed.workers import Workers
from reconcilers.runtime.acts import Event

RUNNING, SUCCEEDED, FAILED, SUSPENDED = "Running", "Succeeded", "Failed", "Suspended"
WORLD_FORMED = "WorldFormed"
WORKERS_STARTED = "WorkersStarted"
WORKERS_GIVEN_UP = "WorkersGivenUp"
MASTER_IGNORED = "MasterReplicaIgnored"
SIDECARS_FAILED = "SidecarsFailed"
TEMPLATE_APPLIED = "TemplateApplied"
"""Changed resources are brought to all Pods (`reconcilers/scale/rolling.py`); all else of a template, and the
job's variables, are for the next Pod of each slot."""
NO_REPLICAS = "NoReplicas"
NO_REPLICAS_MESSAGE = "replicas is 0, so the job has no Pods: raise replicas in spec.replicaSpecs to start it"
MAX_WHY = 96
"""Characters of the world's reason in a condition; the world itself has all of it."""
ENDED = "the job has ended"
TRUE, FALSE = ConditionStatus.TRUE, ConditionStatus.FALSE


def running(_: Condition | None, facts: Facts) -> State:
    status = TRUE if facts.phase is JobPhase.RUNNING else FALSE
    wants_pods = any(spec.replicas or spec.standby for spec in facts.job.spec.replica_specs.values())
    if facts.phase.finished or wants_pods:
        return State(status, facts.phase.value)
    return State(status, NO_REPLICAS, NO_REPLICAS_MESSAGE)


def no_replicas(_: Condition | None, new: Condition) -> Event | None:
    return Event("Normal", NO_REPLICAS, new.message) if new.reason == NO_REPLICAS else None


def world_formed(_: Condition | None, facts: Facts) -> State:
    status = TRUE if facts.world.phase is RendezvousPhase.FORMED else FALSE
    return State(status, facts.world.phase.value, shortened(facts.world.why, MAX_WHY))


def world_at_end(known: Condition | None, facts: Facts) -> NextState:
    """A world that was not formed may be why the job has ended, so its reason stays."""
    if known is None or known.status is not FALSE:
        return not_any_more(known, facts)
    return State(FALSE, known.reason, shortened(facts.world.why, MAX_WHY), known.data)


def suspended(known: Condition | None, facts: Facts) -> State | None:
    if facts.job.spec.suspend:
        return State(TRUE, "Suspended")
    return None if known is None else State(FALSE, "Resumed")


def master_ignored(known: Condition | None, facts: Facts) -> NextState:
    masters = [type_ for type_ in facts.job.spec.replica_specs if type_ in names.MASTER_TYPES]
    if not masters:
        return known
    return State(TRUE, "NoMaster", f"replicaSpecs[{masters[0]}] is ignored: dlr has no master Pod")


def scheduled(known: Condition | None, facts: Facts) -> NextState:
    """Judges the Pods that have no node. A probe for free room is expected to wait."""
    probes, pending = extra_slots(facts.job), _pending(facts.workers)
    wanted = [w for w in pending if w.spec.type != names.WORKER or w.spec.index not in probes]
    return _wait(known, wanted, stuck_by, "cannot be scheduled", "Scheduled", facts.now)


def started(known: Condition | None, facts: Facts) -> NextState:
    """Judges the Pods that do not start on their node."""
    return _wait(known, _pending(facts.workers), hindered_by, "cannot start", "Started", facts.now)


def _pending(workers: Workers) -> list[ElasticWorker]:
    return [worker for worker in workers.exceptional if worker.status.phase is WorkerPhase.PENDING]


def _wait(
    known: Condition | None,
    workers: Collection[ElasticWorker],
    cause_of: Callable[[ElasticWorker], Condition | None],
    what: str,
    no_wait: str,
    now: datetime,
) -> NextState:
    """Names the first worker that waits. The condition is not there before one did."""
    waiting = [(worker.metadata.name, found) for worker in workers if (found := cause_of(worker))]
    if not waiting:
        return known if known is None else State(TRUE, no_wait)
    since = known.last_transition_time if known is not None and known.status is FALSE else now
    (name, why), pods = waiting[0], counted(len(waiting), "Pod")
    message = f"{pods} {what}: {why.message} ({name}, since {since:%Y-%m-%dT%H:%M:%SZ})"
    return State(FALSE, why.reason, message, ConditionData(worker=name, count=len(waiting)))


def wait_at_end(known: Condition | None, _: Facts) -> NextState:
    """What was missing may be why the job has ended, so it stays False; nothing waits any more."""
    if known is None or known.status is not FALSE:
        return known
    message = shortened(f"{ENDED}; {known.message}", MAX_CONDITION_MESSAGE)
    return State(FALSE, known.reason, message, known.data)


def given_up(known: Condition | None, facts: Facts) -> NextState:
    """Judges the workers that get no further Pod, with their reasons; there is no condition before one."""
    if not facts.goes_on:
        return known
    if why := facts.exhausted_workers.values():
        return State(TRUE, "BudgetSpent", "; ".join(why), ConditionData(count=len(why)))
    return None if known is None else State(FALSE, "NoneGivenUp")


def sidecars_failed(known: Condition | None, facts: Facts) -> NextState:
    """Judges the sidecars that failed by themselves, whatever training does."""
    failing = [
        (worker.metadata.name, found.message)
        for worker in facts.workers.exceptional
        if (found := condition_of(worker.status.conditions, SIDECARS_WELL)) is not None
    ]
    if not failing:
        return known if known is None else State(FALSE, "NoneFailed")
    (name, why), others = failing[0], len(failing) - 1
    more = f", and {counted(others, 'more worker')}" if others else ""
    return State(TRUE, "SidecarFailed", f"{why} ({name}{more})")


def not_any_more(known: Condition | None, facts: Facts) -> NextState:
    """A condition of training, once nobody trains."""
    if known is None or known.status is not TRUE:
        return known
    return State(FALSE, facts.phase.value, ENDED)


def end_in(phase: JobPhase) -> Judge:
    return lambda known, facts: facts.end if facts.phase is phase else known


def template_applied(known: Condition | None, facts: Facts) -> NextState:
    outdated, pods = facts.outdated_pods, facts.pods
    if outdated:
        message = (
            f"{outdated} of {counted(pods, 'Pod was', 'Pods were')} made before the template was changed; to "
            "apply it now, suspend and resume the job"
        )
        return State(FALSE, "WaitsForNextPods", message, ConditionData(count=outdated))
    return None if known is None else State(TRUE, "Applied")


def template_changed(old: Condition | None, new: Condition) -> Event | None:
    """An Event when an edit leaves more Pods outdated than there were; none for Pods that follow it in turn,
    nor for what else is edited meanwhile."""
    is_news = new.status is FALSE and (data_of(new).count or 0) > (data_of(old).count or 0)
    return Event("Normal", "TemplateChanged", new.message) if is_news else None
