"""The strategies by which kinds of jobs train, as features and other reconcilers need them."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from datetime import datetime

from controller.resources import Object
from crds.elasticjob import ElasticJob
from crds.elasticworker import ElasticWorker
from reconcilers.job.plan import JobPlan, plan_job
from reconcilers.job.seen import NOBODY, Vetter
from reconcilers.look import ObservedJob
from reconcilers.scale.permission import CountsFault, no_fault
from reconcilers.worker.assignment import JobAssignment
from reconcilers.worker.companions import ServiceOf, no_service


@dataclass(frozen=True)
class Strategy:
    """Strategy of one kind of jobs. By default, workers train in a world, and other Pods beside it."""

    plan: Callable[[ObservedJob, datetime], JobPlan] = plan_job
    assignment: type[JobAssignment] = JobAssignment
    """The Pod of a worker, and when it may go."""
    service_of: ServiceOf = no_service
    """The Service of a job while it runs."""
    counts_fault: CountsFault = no_fault
    """Reason why a ScalePlan may not request certain counts."""


class Strategies:
    """Chooses a job's strategy, which never changes during the job's life."""

    def __init__(self) -> None:
        self._special = list[tuple[Callable[[ElasticJob], bool], Strategy]]()
        self.vetter: Vetter = NOBODY
        """Feature that tests workers before a world is formed with them."""

    def add(self, is_for: Callable[[ElasticJob], bool], strategy: Strategy) -> None:
        self._special.append((is_for, strategy))

    def of(self, job: ElasticJob) -> Strategy:
        return next((strategy for is_for, strategy in self._special if is_for(job)), _WORLD)

    def plan(self, seen: ObservedJob, now: datetime) -> JobPlan:
        return self.of(seen.job).plan(seen, now)

    def assign(self, worker: ElasticWorker, owner: Object, job: ElasticJob) -> JobAssignment:
        return self.of(job).assignment(worker, owner, job)

    def service_of(self, job: ElasticJob) -> Object | None:
        return self.of(job).service_of(job)

    def counts_fault(self, job: ElasticJob, counts: Mapping[str, int]) -> str:
        return self.of(job).counts_fault(job, counts)


_WORLD = Strategy()
