"""How a job's workers train together, as far as it decides who plans the job and what its Pods are."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from datetime import datetime

from reconcilers.job.plan import Plan, plan_job
from reconcilers.job.seen import Seen
from reconcilers.worker.assignment import AssignToJob, JobAssignment


@dataclass(frozen=True)
class Strategy:
    """Each is chosen by job. By default all jobs train in a world, or without one and without an agent."""

    plan: Callable[[Seen, datetime], Plan] = plan_job
    assign: AssignToJob = JobAssignment
    """The Pods of a worker, and when they may go."""
