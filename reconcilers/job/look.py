"""One look at a job: what was seen, and what follows from that alone."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime
from functools import cached_property

from crds.elasticjob import ElasticJob
from crds.nodecheck import NodeCheck
from crds.rendezvous import Rendezvous
from reconcilers.conditions import refusal, slow
from reconcilers.failure.budgets import Overdrawn
from reconcilers.failure.hardware_smell import suspected_at
from reconcilers.failure.policy import exhausted_workers, spare_workers
from reconcilers.job.relaunch import suspended_pods
from reconcilers.job.seen import Seen
from reconcilers.nodecheck.job_checks import Standing, standing_of
from reconcilers.observed.workers import Workers
from reconcilers.scale.rolling import Freshness


@dataclass(frozen=True)
class Look:
    """Each property is worked out when it is first read."""

    seen: Seen
    job: ElasticJob
    """The job; its status has the requested scale."""
    workers: Workers
    """But for those that are to go."""
    fresh: Freshness
    """Workers whose Pods have the resources that the published job wants."""
    scale_requested: bool
    """Whether something was asked of its scale just now."""
    now: datetime

    @property
    def published(self) -> Rendezvous:
        return self.seen.published

    @property
    def is_held(self) -> bool:
        """The API server refuses the Pods of a job that has not begun: it makes no worker."""
        return refusal.is_refused(self.job) and not self.seen.has_begun

    @cached_property
    def leaving(self) -> frozenset[str]:
        """Uids of workers whose Pods a suspension still has to end."""
        return suspended_pods(self.job, self.workers)

    @cached_property
    def active_check(self) -> NodeCheck | None:
        return self.seen.checks.active

    @cached_property
    def suspected_at(self) -> datetime | None:
        workers = self.workers.exceptional
        known = suspected_at(self.job.status.suspected_at, workers, self.published, self.now)
        return slow.suspected_at(known, self.job, self.workers, self.now)

    @cached_property
    def standing(self) -> Standing:
        return standing_of(self.job, self.workers, self.seen.checks, self.suspected_at, self.now)

    @cached_property
    def spare(self) -> Mapping[str, Overdrawn]:
        """Workers that may fail for good, by uid."""
        return spare_workers(self.job, self.workers)

    @cached_property
    def exhausted_workers(self) -> Mapping[str, str]:
        """Workers that get no further Pod, by uid, with the reason."""
        return exhausted_workers(self.workers, self.spare)
