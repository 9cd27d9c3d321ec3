"""New Pods in place of Pods that live, after a failure in place. Pure.

| the worker | its next Pod |
|---|---|
| failed, and a rule of failurePolicy replaces it | is on another node |
| failed by its hardware, and no check follows | is on another node |
| ran out of memory, and may have more | has more memory |
| trains behind a switch that failed | is in another domain |
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime

from crds.elasticjob import ElasticJob
from crds.elasticworker import ElasticWorker, ExitClass
from crds.failure_policy import FailureAction
from crds.job_status import JobFailure
from reconcilers.failure.domains import workers_behind_switch
from reconcilers.failure.incidents import Incident, culprit_of, in_one_line, incident_in
from reconcilers.failure.memory import MemoryRoom
from reconcilers.failure.rules import rules_of
from reconcilers.observed.workers import Workers

LATE_SECONDS = 30.0
"""Age up to which the next world is broken again for a new Pod of a culprit that is found late."""


@dataclass(frozen=True)
class Renewal:
    """Replacement of a Pod that lives."""

    exit_class: ExitClass
    """Class of the failure that causes it."""
    reason: str
    avoids_node: bool
    """Whether it is for another node; otherwise it is for more memory."""
    avoids_domain: str = ""
    """Domain that the next Pod avoids."""


def renewals_due(
    job: ElasticJob,
    workers: Workers,
    incident: Incident | None,
    failure: JobFailure | None,
    now: datetime,
    *,
    room: MemoryRoom,
    are_tested: bool,
) -> dict[str, Renewal]:
    """Return the workers that need a new Pod, by uid.

    Args:
        incident: the failure in place that is counted now; without one, the recorded failure causes them.
        failure: the job's last failure.
        room: memory that Pods may have in addition.
        are_tested: whether nodes are checked after failures of hardware.
    """
    first = incident or _recorded(job, workers, now)
    culprit = culprit_of(first.failure, workers) if first is not None else None
    renewal = first and culprit and _renewal(culprit, first, room, are_tested=are_tested)
    due = {culprit.metadata.uid: renewal} if culprit and renewal else {}
    if failure is not None and not are_tested:
        behind = workers_behind_switch(failure, job, workers)
        due |= {worker.metadata.uid: _off_its_domain(failure) for worker in behind}
    return due


def _recorded(job: ElasticJob, workers: Workers, now: datetime) -> Incident | None:
    """Return the recorded failure in place, unless its worker was restarted in place, and trains."""
    blamed, world = job.status.last_failure, job.status.world
    culprit = culprit_of(blamed, workers)
    if blamed is None or blamed.round is None or culprit is None:
        return None
    formed_at = world.formed_at if world.round == blamed.round + 1 else None
    is_young = formed_at is not None and (now - formed_at).total_seconds() < LATE_SECONDS
    stands = world.round == blamed.round or is_young
    return incident_in(culprit, blamed.round, rules_of(job)) if stands else None


def _renewal(
    worker: ElasticWorker, incident: Incident, room: MemoryRoom, *, are_tested: bool
) -> Renewal | None:
    """Return the new Pod of the worker that failed, by a rule or its exit class; None without one."""
    class_, line = incident.exit_class, in_one_line(incident.failure)
    if incident.action is FailureAction.REPLACE:
        return Renewal(class_, f"a rule of failurePolicy replaces it: {line}", avoids_node=True)
    if incident.action is not None:
        return None
    if class_ is ExitClass.HARDWARE_ERROR and not are_tested:
        return Renewal(class_, f"{class_}: {line}", avoids_node=True)
    if class_ is ExitClass.OOM and room.more_for(worker) is not None:
        return Renewal(class_, f"{class_}: {line}", avoids_node=False)
    return None


def _off_its_domain(failure: JobFailure) -> Renewal:
    """Return the new Pod of a worker in the domain whose switch failed."""
    class_ = ExitClass(failure.exit_class)
    why = f"{class_}: {in_one_line(failure)}"
    return Renewal(class_, why, avoids_node=True, avoids_domain=failure.domain or "")
