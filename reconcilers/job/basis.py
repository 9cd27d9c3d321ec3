"""What a look at a job decides from: the job as it is observed, and as it is wanted by now. Pure."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from functools import cached_property

from crds.elasticjob import ElasticJob
from crds.elasticworker import ElasticWorker, WorkerPhase
from crds.job_status import Departed
from crds.phases import JobPhase
from crds.rendezvous import Rendezvous
from reconcilers.conditions.refusal import PodRefusal
from reconcilers.conditions.table import TABLE, ConditionTable
from reconcilers.failure.budgets import Overdrawn
from reconcilers.failure.policy import exhausted_workers
from reconcilers.job.seen import ObservedJob
from reconcilers.observed.workers import Workers
from reconcilers.scale.rolling import Freshness
from reconcilers.world.vetting import Standing


@dataclass(frozen=True)
class Basis:
    """Each property is worked out when it is first read."""

    seen: ObservedJob
    job: ElasticJob
    workers: Workers
    """But for those that are deleted."""
    fresh: Freshness
    """Workers whose Pods lack the resources that the published job wants."""
    now: datetime
    scale_requested: bool = False
    """Another scale was requested just now."""
    refusal: PodRefusal | None = None
    """Why no Pod can be made of the template; None if they can."""
    table: ConditionTable = TABLE
    """The conditions and warnings that the job may have."""
    spare: Mapping[str, Overdrawn] = field(default_factory=dict)
    """Workers that may fail for good, by uid."""

    @property
    def published(self) -> Rendezvous:
        return self.seen.published

    @property
    def is_refused(self) -> bool:
        """No further Pod of the job can be made."""
        return self.refusal is not None

    @property
    def is_held(self) -> bool:
        """The Pods of a job that has not begun cannot be made: it makes no further worker."""
        return self.refusal is not None and not self.refusal.has_begun

    @cached_property
    def leaving(self) -> frozenset[str]:
        """Uids of workers whose Pods a suspension still has to end."""
        return suspended_pods(self.job, self.workers)

    @cached_property
    def standing(self) -> Standing:
        return self.seen.vetting.standing(self.job, self.workers, self.now)

    @cached_property
    def exhausted_workers(self) -> Mapping[str, str]:
        """Workers that get no further Pod, by uid, with the reason."""
        return exhausted_workers(self.workers, self.spare)


def suspended_pods(job: ElasticJob, workers: Sequence[ElasticWorker]) -> frozenset[str]:
    """Uids of the workers of a job that is resumed whose Pod the suspension has ended, or still has to.

    Such a Pod is being deleted, and its agent leaves for the suspension that it saw: whatever the agent has
    reported, it joins no world, and that it has left is no success. Another Pod need not wait for that one's
    grace period, nor for a dead node.
    """
    if job.status.phase is not JobPhase.SUSPENDED or job.stops:
        return frozenset()
    return frozenset(
        worker.metadata.uid
        for worker in workers
        if worker.status.pod_uid is not None
        and worker.status.observed_incarnation == worker.spec.incarnation
        and worker.status.phase is not WorkerPhase.FAILED
    )


def with_departed(job: ElasticJob, surplus: Collection[ElasticWorker]) -> ElasticJob:
    """The job with the counts of workers that are deleted (`status.departed`).

    They are taken over with the write that comes before the deletion, and the slot is remembered as counted
    for as long as its worker is there: so a controller that dies in between counts nothing twice.

    Args:
        surplus: the workers that are deleted, as long as they are there.
    """
    known = job.status.departed
    failed = [worker for worker in surplus if worker.status.restarts]
    if known is None and not failed:
        return job
    known = known or Departed()
    counted = {(type_, index) for type_, slots in known.leaving.items() for index in slots}
    restarts, failures = Counter(known.restarts), Counter(known.failures)
    leaving = dict[str, list[int]]()
    for worker in failed:
        leaving.setdefault(worker.spec.type, []).append(worker.spec.index)
        if (worker.spec.type, worker.spec.index) not in counted:
            restarts.update(worker.status.restarts)
            failures.update(worker.status.failures)
    slots = {type_: sorted(indices) for type_, indices in leaving.items()}
    update = {"restarts": dict(restarts), "failures": dict(failures), "leaving": slots}
    return job.having(departed=known.model_copy(update=update))
