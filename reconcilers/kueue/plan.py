"""The next write between a job and its queue, as one pure function.

The order of the writes follows from Kueue's own writes between them, and was tested with Kueue 0.19.1. One
write is planned at a time, from the stored objects.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from datetime import datetime
from enum import Enum

from controller.resources import Object
from crds import names
from crds.elasticjob import ElasticJob
from crds.job_status import QueueAdmission
from crds.model import MAX_CONDITION_MESSAGE
from crds.phases import JobPhase
from crds.texts import shortened
from reconcilers.kueue import conditions
from reconcilers.kueue.manifest import PodSet, Wish, counts, pod_sets, workload_of
from reconcilers.kueue.multikueue import MANAGER
from reconcilers.kueue.sorting import JobWorkloads
from reconcilers.kueue.workload import FINALIZER, PAUSED, PREEMPTED, REPLACED, Workload, is_swappable

KUEUE_FINISHES_SECONDS = 1.0
"""Time in which Kueue finishes a replaced Workload; after that it never does."""
PREEMPTOR_SECONDS = 10.0
"""Time in which Kueue admits the slice of a job that has shrunk for a preemptor, if that suffices."""
_ACTIVATE = (
    "kubectl patch workloads.kueue.x-k8s.io -n %s %s --type merge -p " + """'{"spec":{"active":true}}'"""
)
QUEUED, EVICTED, GROWING, ADMITTED, SUSPENDED = "Queued", "Evicted", "Growing", "Admitted", "Suspended"


class Verb(Enum):
    CREATE = "create"
    PATCH = "patch"
    STATUS = "status"
    DELETE = "delete"


@dataclass(frozen=True)
class Write:
    """A write of a Workload."""

    verb: Verb
    body: Object
    """The object to create, a merge patch, or a status."""
    of: Workload | None = None
    """The Workload from which it was decided; None for a new one."""


@dataclass(frozen=True)
class QueueSeen:
    """The input of a plan: a job that is in a queue, or leaves it, with its Workloads and Pods."""

    job: ElasticJob
    wish: Wish
    workloads: JobWorkloads
    pods: Mapping[str, int] = field(default_factory=dict)
    """Pods that have not ended, by type; includes those being created."""
    running: Mapping[str, int] = field(default_factory=dict)
    """Pods that run, or have succeeded, by type."""
    slice_seconds: float = 0.0
    """Time since the slice was first seen for the held Workload in its present state."""
    replaced_seconds: float = 0.0
    """Time since the held Workload and the one before it were first seen both charged."""
    forbids_slices: str = ""
    """Why the job cannot grow in this queue; empty if it can."""
    refused: str = ""
    """Why the last write of its Workload was refused; empty if it was not."""
    is_copy: bool = False
    """Whether MultiKueue created its Workload, which has to stay equal to that in the manager cluster, and
    whose end counts as the job's."""

    @property
    def all_pods(self) -> int:
        return sum(self.pods.values())

    @property
    def workers(self) -> int:
        """Number of worker Pods that have not ended."""
        return self.pods.get(names.WORKER, 0)


@dataclass(frozen=True)
class QueuePlan:
    admission: QueueAdmission | None
    """`admission` of the job's status; written before the Workload."""
    write: Write | None = None
    look_again_seconds: float | None = None
    """Time until something is due that triggers no look."""


def plan_queue(seen: QueueSeen, now: datetime) -> QueuePlan:
    """Plan the next write between a job and its queue."""
    workloads, job = seen.workloads, seen.job
    if job.metadata.deletion_timestamp is not None or job.status.finished or not seen.wish.queue:
        return _ending(seen, now)
    if workloads.held is not None:
        plan = _charged(seen, workloads.held, now)
    elif workloads.waiting is not None:
        plan = _waiting(seen, workloads.waiting)
    elif job.spec.suspend:
        plan = QueuePlan(_halted(seen, SUSPENDED, "the job is suspended"))
    else:
        body = workload_of(job, seen.wish, seen.wish.sets, _number(workloads), seen.wish.priority)
        message = seen.refused or f"it waits in the queue {seen.wish.queue}"
        plan = QueuePlan(_halted(seen, QUEUED, message), Write(Verb.CREATE, body))
    return replace(plan, write=plan.write or _forgotten(workloads))


def _ending(seen: QueueSeen, now: datetime) -> QueuePlan:
    """Plan for a job that has ended, is deleted, or has left its queue: its Pods go, then its quota."""
    workloads, job = seen.workloads, seen.job
    has_left = not seen.wish.queue and not job.status.finished
    admission = job.status.admission
    without_quota = [
        each for each in (workloads.slice, workloads.waiting, *workloads.others) if each is not None
    ]
    charged = [each for each in (workloads.replaced, workloads.held) if each is not None]
    if has_left and admission is not None:
        is_out = not (charged or without_quota)
        admission = None if is_out else _halted(seen, QUEUED, "it leaves its queue")
    if without_quota:
        return QueuePlan(admission, _removed(without_quota[0]))
    if charged and seen.all_pods == 0:
        reason = "Succeeded" if job.status.phase is JobPhase.SUCCEEDED else "Failed"
        message = shortened(job.status.message or f"the job is {reason.lower()}", MAX_CONDITION_MESSAGE)
        return QueuePlan(admission, _finished(charged[0], reason, message, now))
    if charged:
        return QueuePlan(admission)
    if has_left or job.metadata.deletion_timestamp is not None:
        return QueuePlan(admission, _forgotten(workloads))
    kept = next((each for each in workloads.finished if each.has_finalizer), None)
    return QueuePlan(admission, None if kept is None else let_go(kept))


def _waiting(seen: QueueSeen, workload: Workload) -> QueuePlan:
    """Plan for a job without quota: its Workload may be changed freely, and requests what the job wants."""
    wish, suspend = seen.wish, seen.job.spec.suspend
    reason, message = _why_it_waits(workload)
    admission = _halted(seen, SUSPENDED if suspend else reason, seen.refused or message, workload)
    patch: Object = {}
    if workload.is_deleted or (workload.digest != wish.digest and not suspend):
        return QueuePlan(admission, _removed(workload) if seen.all_pods == 0 else None)
    if seen.workloads.others:
        return QueuePlan(admission, _removed(seen.workloads.others[0]))
    if suspend and workload.is_active:
        return QueuePlan(admission, _patch(workload, _paused(True)))
    if not suspend and not workload.is_active and workload.is_paused:
        patch = _paused(False)
    asked = workload.with_priority(wish.priority)
    if workload.queue != wish.queue:
        asked["queueName"] = wish.queue
    if counts(workload.pod_sets) != wish.sets:
        asked["podSets"] = pod_sets(wish.sets, wish.templates)
    if asked and not (suspend or seen.is_copy):
        patch["spec"] = {**asked, **patch.get("spec", {})}
    return QueuePlan(admission, _patch(workload, patch) if patch else None)


def _charged(seen: QueueSeen, held: Workload, now: datetime) -> QueuePlan:
    """Plan for a job that has quota, or gives it back."""
    workloads = seen.workloads
    before = seen.job.status.admission
    if workloads.replaced is not None:
        left_seconds = KUEUE_FINISHES_SECONDS - seen.replaced_seconds
        if left_seconds > 0:
            return QueuePlan(before, look_again_seconds=left_seconds)
        message = f"Replaced by the workload {held.name}"
        return QueuePlan(before, _finished(workloads.replaced, REPLACED, message, now))
    if workloads.others:
        return QueuePlan(before, _removed(workloads.others[0]))
    if held.is_deleted:
        why = "its Workload was deleted"
        over = let_go(held) if held.has_finalizer else _finished(held, "Failed", why, now)
        return _stopping(seen, held, why, over)
    if held.is_evicted:
        return _evicted(seen, held, now)
    if not held.is_active:  # Kueue charges it no longer, and evicts it
        return _stopping(seen, held, _why_it_waits(held)[1], None, SUSPENDED)
    if not held.is_admitted:
        if seen.all_pods and before is not None:
            return QueuePlan(before)
        return QueuePlan(_halted(seen, QUEUED, _checks(held), held))
    pause = _patch(held, _paused(True))  # an inactive Workload is not charged, so its Pods go first
    if seen.job.spec.suspend:
        return _stopping(seen, held, "the job is suspended", pause, SUSPENDED)
    if not seen.wish.is_of(held):
        return _stopping(seen, held, "its request was edited, so it queues again", pause, QUEUED)
    return _admitted(seen, held, now)


def _evicted(seen: QueueSeen, held: Workload, now: datetime) -> QueuePlan:
    """Shrink for a preemptor, if the job can go on with fewer workers; stop for all other evictions."""
    wish, slice_ = seen.wish, seen.workloads.slice
    before = seen.job.status.admission
    reason, message = _evicted_why(held)
    has_granted = int(held.assignment(names.WORKER).get("count", 0))
    may_shrink = (
        reason == PREEMPTED
        and not seen.is_copy
        and 0 < wish.floor < has_granted
        and held.floor(names.WORKER) <= wish.floor
        and not held.has_checks
        and not seen.job.spec.suspend
        and wish.is_of(held)
        and before is not None
        and before.workers > 0
        and not seen.workloads.leaving
    )
    if not may_shrink or (slice_ is not None and seen.slice_seconds >= PREEMPTOR_SECONDS):
        return _stopping(seen, held, message, _status(held, conditions.released(held, now)), reason)
    admission = _admission(seen, wish.floor, EVICTED, message, held)
    if held.granted(names.WORKER) > wish.floor:
        if slice_ is not None:
            return QueuePlan(admission, _removed(slice_))
        if seen.workers > wish.floor:
            return QueuePlan(admission)
        return QueuePlan(admission, _patch(held, {"spec": {"podSets": _lowered(held, wish.floor)}}))
    write = _slice(seen, held, wish.with_workers(wish.workers, wish.floor), wish.priority)
    return QueuePlan(admission, write, PREEMPTOR_SECONDS - seen.slice_seconds)


def _stopping(
    seen: QueueSeen, held: Workload, why: str, release: Write | None, reason: str = EVICTED
) -> QueuePlan:
    """Make all Pods save and go, then give the quota back."""
    admission = _halted(seen, reason, why, held)
    if seen.workloads.slice is not None:
        return QueuePlan(admission, _removed(seen.workloads.slice))
    return QueuePlan(admission, release if seen.all_pods == 0 else None)


def _admitted(seen: QueueSeen, held: Workload, now: datetime) -> QueuePlan:
    wish, slice_ = seen.wish, seen.workloads.slice
    granted, admission = held.granted(names.WORKER), _granted(seen, held)
    if (status := conditions.ready(held, _is_ready(seen, held), now)) is not None:
        return QueuePlan(admission, _status(held, status))
    change = {} if seen.is_copy else held.with_priority(wish.priority)
    if change and is_swappable(held.priority) and is_swappable(wish.priority):
        return QueuePlan(admission, _patch(held, {"spec": change}))
    if seen.is_copy or seen.job.spec.managed_by == MANAGER:
        return QueuePlan(admission)
    least = held.floor(names.WORKER)
    if (used := wish.useful(granted)) < granted:
        return QueuePlan(admission, _shrunk(seen, held, least, used))
    if least > wish.floor:
        return QueuePlan(admission, _slice(seen, held, wish.with_workers(granted, wish.floor), wish.priority))
    if wish.workers > granted and not _why_fixed(seen, held):
        sets = wish.with_workers(wish.workers, wish.more_than(granted))
        return QueuePlan(admission, _slice(seen, held, sets, wish.growth_priority))
    return QueuePlan(admission, None if slice_ is None else _removed(slice_))


def _is_ready(seen: QueueSeen, held: Workload) -> bool:
    """Whether the minimum of workers runs, and all Pods of the other types."""
    needed = {type_: held.granted(type_) for type_ in seen.wish.sets}
    if names.WORKER in needed:
        needed[names.WORKER] = min(needed[names.WORKER], seen.wish.floor)
    return all(seen.running.get(type_, 0) >= count for type_, count in needed.items())


def _shrunk(seen: QueueSeen, held: Workload, least: int, used: int) -> Write | None:
    """Give back the granted workers that the job does not use, once their Pods are gone."""
    wish, slice_ = seen.wish, seen.workloads.slice
    sets = wish.with_workers(used, wish.floor)
    if slice_ is not None and counts(slice_.pod_sets) != sets:
        return _removed(slice_)
    if seen.workers > used:
        return None
    if used >= least:
        return _patch(held, {"spec": {"podSets": _lowered(held, used)}})
    return _slice(seen, held, sets, wish.priority)


def _slice(seen: QueueSeen, held: Workload, sets: Mapping[str, PodSet], priority: Object) -> Write | None:
    """Create the slice, or change the request of the waiting one."""
    wish, slice_ = seen.wish, seen.workloads.slice
    if slice_ is None and seen.workloads.leaving:  # one of them may be a slice that Kueue still admits
        return None
    if slice_ is None:
        return Write(
            Verb.CREATE, workload_of(seen.job, wish, sets, _number(seen.workloads), priority, replaces=held)
        )
    if slice_.digest != wish.digest:
        return _removed(slice_)
    asked = slice_.with_priority(priority)
    if counts(slice_.pod_sets) != sets:
        asked["podSets"] = pod_sets(sets, wish.templates)
    return _patch(slice_, {"spec": asked}) if asked else None


def _lowered(held: Workload, workers: int) -> list[Object]:
    """The stored Pod sets with fewer workers."""
    return [each | {"count": workers} if each["name"] == names.WORKER else each for each in held.pod_sets]


def _granted(seen: QueueSeen, held: Workload) -> QueueAdmission:
    granted, wanted = held.granted(names.WORKER), seen.wish.workers
    if names.WORKER not in seen.wish.sets:
        return _admission(seen, held.count(next(iter(seen.wish.sets))), ADMITTED, "", held)
    why, slice_ = _why_fixed(seen, held), seen.workloads.slice
    reason, message, fixed = ADMITTED, why, bool(why)
    if granted < wanted:
        why = why or (_why_it_waits(slice_)[1] if slice_ is not None else "")
        message = f"{granted} of {wanted} Pods are granted" + (f": {why}" if why else "")
        reason = GROWING
    return _admission(seen, granted, reason, message, held).model_copy(update={"fixed": fixed})


def _why_fixed(seen: QueueSeen, held: Workload) -> str:
    """Say why no slice may wait for more workers; empty if one may."""
    own = "its Workload has admission checks, with which a job cannot wait for more"
    return seen.forbids_slices or (own if held.has_checks else "")


def _why_it_waits(workload: Workload) -> tuple[str, str]:
    """The reason and message why a Workload waits, Kueue's own if there are any."""
    found = workload.conditions.get("QuotaReserved", {})
    if not workload.is_active:
        found = workload.conditions.get("Evicted", {})
        why = str(found.get("message") or f"its Workload {workload.name} is not active")
        where = workload.raw["metadata"]["namespace"], workload.name
        hint = "" if workload.is_paused else f"; to let it queue again: {_ACTIVATE % where}"
        return SUSPENDED, why + hint
    reason = str(found.get("reason") or QUEUED)
    return reason, str(found.get("message") or f"it waits in the queue {workload.queue}")


def _evicted_why(workload: Workload) -> tuple[str, str]:
    found = workload.conditions["Evicted"]
    return str(found.get("reason") or EVICTED), str(found.get("message") or "it was evicted")


def _checks(workload: Workload) -> str:
    """The message why a Workload with quota is not admitted yet."""
    missing = [
        f"{each['name']}: {each.get('message') or each.get('state')}"
        for each in workload.status.get("admissionChecks") or ()
        if each.get("state") != "Ready"
    ]
    return f"quota is reserved; checks are missing: {'; '.join(missing)}" if missing else "quota is reserved"


def _halted(seen: QueueSeen, reason: str, message: str, workload: Workload | None = None) -> QueueAdmission:
    return _admission(seen, 0, reason, message, workload)


def _admission(
    seen: QueueSeen, workers: int, reason: str, message: str, workload: Workload | None
) -> QueueAdmission:
    name = "" if workload is None else workload.name
    text = shortened(message, MAX_CONDITION_MESSAGE)
    return QueueAdmission(
        queue=seen.wish.queue, workload=name, workers=workers, reason=shortened(reason, 128), message=text
    )


def _number(workloads: JobWorkloads) -> int:
    parts = (workloads.held, workloads.replaced, workloads.slice, workloads.waiting)
    there = [*(each for each in parts if each is not None), *workloads.others, *workloads.finished]
    there += workloads.leaving
    return max((each.number for each in there), default=0) + 1


def _forgotten(workloads: JobWorkloads) -> Write | None:
    """Remove a finished Workload, which others have followed."""
    return next(map(_removed, workloads.finished), None)


def _removed(workload: Workload) -> Write:
    """Delete the Workload, or release it if it is deleted already."""
    return let_go(workload) if workload.is_deleted else Write(Verb.DELETE, {}, workload)


def let_go(workload: Workload) -> Write:
    """Release a Workload by removing our finalizer."""
    left = [each for each in workload.raw["metadata"].get("finalizers") or () if each != FINALIZER]
    return _patch(workload, {"metadata": {"finalizers": left}})


def _paused(is_paused: bool) -> Object:
    mark = "true" if is_paused else None
    return {"metadata": {"annotations": {PAUSED: mark}}, "spec": {"active": not is_paused}}


def _patch(workload: Workload, patch: Object) -> Write:
    return Write(Verb.PATCH, patch, workload)


def _finished(workload: Workload, reason: str, message: str, now: datetime) -> Write:
    return _status(workload, conditions.finished(workload, reason, message, now))


def _status(workload: Workload, status: Object) -> Write:
    return Write(Verb.STATUS, status, workload)
