"""Warnings about a job's Pods, their template, and the rules for their ends. Pure."""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from dataclasses import replace
from datetime import datetime
from functools import partial

from controller.wording import and_more, counted
from crds import names
from crds.elasticjob import ElasticJob
from crds.elasticworker import ElasticWorker, WorkerPhase
from crds.job_status import JobWarning
from crds.model import Condition, ConditionData, ConditionStatus
from reconcilers.failure.meaning import meaning_of
from reconcilers.failure.rules import unfit_patterns
from reconcilers.look import DesiredJob, WarningState
from reconcilers.observed.conditions import data_of
from reconcilers.observed.domains import labels_of
from reconcilers.observed.slots import extra_slots, training_types, wanted_slots
from reconcilers.observed.start import STARTED
from reconcilers.observed.worker_state import OF_THE_TEMPLATE, REFUSALS, hindered_by, runs, stuck_by
from reconcilers.observed.workers import Workers
from reconcilers.runtime.refused import WRITE_REFUSED
from reconcilers.worker.ends import QUICK_EXIT_SECONDS

WORKERS_UNSCHEDULED, WORKERS_NOT_STARTED = "WorkersUnscheduled", "WorkersNotStarted"
WORKERS_GIVEN_UP, WORKERS_NOT_MADE = "WorkersGivenUp", "WorkersNotMade"
NAMES_TAKEN = "NamesTaken"
ENDS_AT_ONCE = "EndsAtOnce"
MANY_QUICK_EXITS = 3
"""Number of Pods of a slot in a row that ended within a minute of their start."""
MOST_NAMES = 3
"""Most ElasticWorkers that a warning names; for more, it gives the label of all."""
TEMPLATE_CHANGED = "TemplateChanged"
"""Changed resources are rolled out to all Pods (`reconcilers/scale/rolling.py`); other changes of a template,
and of the job's variables, only reach the next Pod of each slot."""
MASTER_IGNORED = "MasterReplicaIgnored"
PATTERNS_NOT_APPLIED = "PatternsNotApplied"
NODES_WITHOUT_DOMAIN = "NodesWithoutDomain"


def without_domain(_: JobWarning | None, look: DesiredJob) -> WarningState | None:
    """Judge the nodes without a domain label, in a job with domains."""
    policy = look.job.spec.elastic_policy.domain
    if policy is None:
        return None
    apart = [w for w in look.workers.training if runs(w) and w.status.node_name and not w.status.domain]
    if not apart:
        return None
    first, labels = apart[0], " or ".join(labels_of(policy))
    message = (
        f"{counted(len(apart), 'worker')} on nodes without the label {labels}, such as node "
        f"{first.status.node_name}, which elasticPolicy.domain reads: they count as one domain"
    )
    return WarningState(message, data=ConditionData(worker=first.metadata.name, count=len(apart)))


def not_made(_: JobWarning | None, look: DesiredJob) -> WarningState | None:
    """Judge the ElasticWorkers that the job cannot make."""
    seen = look.seen
    if seen.strangers:
        data = ConditionData(count=len(seen.strangers))
        return WarningState(_of_strangers(look.job, seen.strangers), NAMES_TAKEN, data)
    if seen.held:
        more = and_more(len(seen.held) - 1, "worker")
        message = (
            f"the deleted ElasticWorker {seen.held[0]}, so the next one of its name cannot be made: let the "
            f"component that set them remove them, or do so with kubectl edit elasticworkers{more}"
        )
        return WarningState(message, NAMES_TAKEN, ConditionData(count=len(seen.held)))
    if seen.workers_refused:
        return WarningState(f"the API server refuses ElasticWorkers: {seen.workers_refused}", WRITE_REFUSED)
    return None


def _of_strangers(job: ElasticJob, found: Sequence[str]) -> str:
    metadata, is_one = job.metadata, len(found) == 1
    which = " ".join(found) if len(found) <= MOST_NAMES else f"-l {names.LABEL_JOB}={metadata.name}"
    have = "ElasticWorker has a name" if is_one else "ElasticWorkers have names"
    return (
        f"{len(found)} {have} of this job's workers, and no job owns {'it' if is_one else 'them'}, as when "
        "an earlier job was deleted without its dependents; to let this one begin: "
        f"kubectl delete elasticworkers -n {metadata.namespace} {which}"
    )


def unscheduled(before: JobWarning | None, look: DesiredJob) -> WarningState | None:
    """Judge the Pods that have no node. Extra workers are expected to wait."""
    if look.goes_on and look.seen.limit.remaining == 0 and (missing := _missing(look)) > 0:
        why = look.seen.limit.reached(look.job.metadata.namespace)
        message = f"{counted(missing, 'worker')} cannot be made: {why}"
        return WarningState(message, "NamespaceFull", ConditionData(count=missing))
    wanted = _without_probes(look.job, _pending(look.workers))
    return _wait(before, look, wanted, _unscheduled_by, "cannot be scheduled")


def _unscheduled_by(worker: ElasticWorker) -> Condition | None:
    """Return why its Pod has no node; None if the template is to blame (`refusal.py`)."""
    found = stuck_by(worker)
    return None if found is None or found.reason in OF_THE_TEMPLATE else found


def _missing(look: DesiredJob) -> int:
    """Return the number of wanted workers that do not exist."""
    wanted = sum(len(wanted_slots(look.job, type_)) for type_ in training_types(look.job))
    return wanted - len(look.workers)


def not_started(before: JobWarning | None, look: DesiredJob) -> WarningState | None:
    """Judge the Pods that do not start on their node, or end there at once, one after the other."""
    pending = _pending(look.workers)
    late = _wait(before, look, pending, hindered_by, "cannot start")
    if late is not None:
        # The Events of a job's Pods are read one at a time, so others may have the same cause.
        others = sum(1 for each in pending if each.status.node_name and hindered_by(each) is None)
        more = f"; {counted(others, 'more Pod has', 'more Pods have')} not started yet" if others else ""
        return replace(late, message=late.message + more)
    wanted = _without_probes(look.job, look.workers.exceptional)
    return _wait(before, look, wanted, partial(_ended_by, now=look.now), "cannot run for long")


def _ended_by(worker: ElasticWorker, now: datetime) -> Condition | None:
    """Return why its last Pods ended at once, if these ends cost nothing, and so may go on for ever.

    A running Pod has to outlive the time in which those ended.
    """
    status, end = worker.status, worker.status.last_exit
    if end is None or (status.quick_exits or 0) < MANY_QUICK_EXITS or not meaning_of(end.exit_class).free:
        return None
    lasts = status.phase is WorkerPhase.RUNNING and _seconds_to_last(worker, now) <= 0
    if lasts or status.phase is WorkerPhase.SUCCEEDED:
        return None
    return Condition(
        type=STARTED,
        status=ConditionStatus.FALSE,
        reason=ENDS_AT_ONCE,
        message=f"the last {MANY_QUICK_EXITS} ended soon after their start: {end.message or end.reason}",
        last_transition_time=end.time,
    )


def _seconds_to_last(worker: ElasticWorker, now: datetime) -> float:
    """Return the time until a running Pod no longer counts as one that ends at once."""
    since = worker.status.history[-1].running_at if worker.status.history else None
    return QUICK_EXIT_SECONDS - abs((now - since).total_seconds()) if since is not None else 0.0


def seconds_to_last(workers: Workers, now: datetime) -> float | None:
    """Return the time until a warning about Pods that end at once may be over."""
    left = (_seconds_to_last(worker, now) for worker in workers.exceptional if _ended_by(worker, now))
    return min((seconds for seconds in left if seconds > 0), default=None)


def _without_probes(job: ElasticJob, workers: Collection[ElasticWorker]) -> list[ElasticWorker]:
    probes = extra_slots(job)
    return [w for w in workers if w.spec.type != names.WORKER or w.spec.index not in probes]


def _pending(workers: Workers) -> list[ElasticWorker]:
    return [worker for worker in workers.exceptional if worker.status.phase is WorkerPhase.PENDING]


def _wait(
    before: JobWarning | None,
    look: DesiredJob,
    workers: Collection[ElasticWorker],
    cause_of: Callable[[ElasticWorker], Condition | None],
    what: str,
) -> WarningState | None:
    """Warn about the first worker whose Pod is refused, for which others may wait, or else the first one."""
    waiting = [(worker.metadata.name, found) for worker in workers if (found := cause_of(worker))]
    if not waiting:
        return None
    since = look.now if before is None else before.since
    name, why = min(waiting, key=lambda each: each[1].reason not in REFUSALS)
    pods = counted(len(waiting), "Pod")
    message = f"{pods} {what}: {why.message} ({name}, since {since:%Y-%m-%dT%H:%M:%SZ})"
    return WarningState(message, why.reason, ConditionData(worker=name, count=len(waiting)))


def exhausted(before: JobWarning | None, look: DesiredJob) -> WarningState | JobWarning | None:
    """Judge the workers that get no further Pod, with their reasons."""
    if not look.goes_on:
        return before
    why = look.exhausted_workers.values()
    return WarningState("; ".join(why), data=ConditionData(count=len(why))) if why else None


def template_changed(_: JobWarning | None, look: DesiredJob) -> WarningState | None:
    outdated, pods = look.seen.outdated_pods, len(look.seen.pods)
    if not outdated:
        return None
    message = (
        f"{outdated} of {counted(pods, 'Pod was', 'Pods were')} made before the template "
        "was changed; to apply it now, suspend and resume the job"
    )
    return WarningState(message, data=ConditionData(count=outdated))


def more_pods(old: JobWarning | None, new: JobWarning) -> bool:
    """Whether an edit has made more Pods outdated; fewer, as while Pods are replaced, need no Event."""
    return (data_of(new).count or 0) > (data_of(old).count or 0)


def master_ignored(_: JobWarning | None, look: DesiredJob) -> WarningState | None:
    masters = [type_ for type_ in look.job.spec.replica_specs if type_ in names.MASTER_TYPES]
    return WarningState(f"replicaSpecs[{masters[0]}] is ignored: dlr has no master Pod") if masters else None


def patterns_not_applied(_: JobWarning | None, look: DesiredJob) -> WarningState | None:
    """Judge the patterns of failure rules, which must be RE2, and small together."""
    found = unfit_patterns(look.job.spec.failure_policy.rules)
    if not found:
        return None
    more = counted(len(found) - 1, "further pattern is", "further patterns are")
    return WarningState(f"{found[0]}; {more} not applied" if found[1:] else found[0])
