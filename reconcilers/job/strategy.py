"""How the workers of a job train together, as far as other reconcilers than the job's own depend on it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from datetime import datetime

from reconcilers.job.plan import Plan, plan_job
from reconcilers.job.seen import Seen
from reconcilers.scale.permission import CountsFault, no_fault
from reconcilers.worker.assignment import AssignToJob, JobAssignment
from reconcilers.worker.companions import ServiceOf, no_service


@dataclass(frozen=True)
class Strategy:
    """Each function chooses by the job. By default workers train in a world, and other Pods beside it."""

    plan: Callable[[Seen, datetime], Plan] = plan_job
    assign: AssignToJob = JobAssignment
    """What a worker is there for: its Pod, and when that may go."""
    service_of: ServiceOf = no_service
    """The Service that the job is to have while it runs."""
    counts_fault: CountsFault = no_fault
    """Why a ScalePlan may not ask for such counts."""
