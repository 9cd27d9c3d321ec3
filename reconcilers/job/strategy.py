"""How the workers of a job train together, as far as features and other reconcilers have to do with it."""

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
    """How one kind of jobs trains. By default, workers do so in a world, and other Pods beside it."""

    plan: Callable[[ObservedJob, datetime], JobPlan] = plan_job
    assignment: type[JobAssignment] = JobAssignment
    """What a worker is there for: its Pod, and when that may go."""
    service_of: ServiceOf = no_service
    """The Service that a job is to have while it runs."""
    counts_fault: CountsFault = no_fault
    """Why a ScalePlan may not ask for such counts."""


class Strategies:
    """Chooses a job's strategy. Which one it is does not change in a job's life."""

    def __init__(self) -> None:
        self._special = list[tuple[Callable[[ElasticJob], bool], Strategy]]()
        self.vetter: Vetter = NOBODY
        """Who tests workers before a world is formed with them."""

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
