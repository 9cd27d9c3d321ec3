"""Times of a job's start, end and clean-up. Pure, with `now` passed in."""

from __future__ import annotations

from datetime import datetime

from crds.elasticjob import ElasticJob
from crds.job_spec import CleanPodPolicy, OptimizeMode
from crds.phases import JobPhase
from reconcilers.observed.builder import grace_seconds

LEAVE_MARGIN_SECONDS = 5.0
SIZING_SECONDS = 5.0
"""Longest wait of a job whose size follows from earlier jobs."""


def seconds_to_deadline(job: ElasticJob, now: datetime) -> float | None:
    """Return the time until `activeDeadlineSeconds` are over; None without one."""
    deadline, started = job.spec.run_policy.active_deadline_seconds, job.status.start_time
    if deadline is None or started is None:
        return None
    return deadline - (now - started).total_seconds()


def deadline_exceeded(job: ElasticJob, now: datetime) -> str:
    """Return why the job ends by `activeDeadlineSeconds`; empty if it does not."""
    remaining, limit = seconds_to_deadline(job, now), job.spec.run_policy.active_deadline_seconds
    is_over = remaining is not None and remaining <= 0
    return f"the job was active for longer than activeDeadlineSeconds {limit}" if is_over else ""


def seconds_to_sizing(job: ElasticJob, now: datetime) -> float | None:
    """Return the time until a job sized by earlier jobs makes its first workers in any case; None if now.

    It waits for `status.profile`, whose writer may be away.
    """
    status = job.status
    if job.spec.optimize_mode is not OptimizeMode.CLUSTER or status.profile is not None or status.world.round:
        return None
    left = SIZING_SECONDS - (now - (status.start_time or now)).total_seconds()
    return left if left > 0 else None


def seconds_to_expiry(job: ElasticJob, now: datetime) -> float | None:
    """Return the time until a finished job is deleted; None if it stays."""
    ttl, completed = job.spec.run_policy.ttl_seconds_after_finished, job.status.completion_time
    if ttl is None or completed is None:
        return None
    return ttl - (now - completed).total_seconds()


def seconds_to_cleaning(
    job: ElasticJob, type_: str, *, pod_ended: bool, now: datetime, has_agent: bool
) -> float | None:
    """Return the time until a Pod of a suspended or finished job is deleted; None if it may stay.

    A suspended job's Pods go once its status says Suspended, so that after a resume they do not count as
    failed. A finished job's agents leave by themselves, so that their Pods keep exit code and log; a Pod that
    still runs after its grace period is deleted.

    Args:
        has_agent: whether the Pod has an agent, which leaves by itself when the job has ended.
    """
    phase, policy = job.status.phase, job.spec.run_policy.clean_pod_policy
    if not job.status.finished:
        return None if job.stops and phase is not JobPhase.SUSPENDED else 0.0
    if policy is CleanPodPolicy.NONE or (policy is CleanPodPolicy.RUNNING and pod_ended):
        return None
    if pod_ended or (phase is JobPhase.SUCCEEDED and not has_agent):
        return 0.0
    template = job.spec.replica_specs[type_].template if type_ in job.spec.replica_specs else {"spec": {}}
    return seconds_to_leave(grace_seconds(template["spec"]), job.status.completion_time or now, now)


def seconds_to_leave(grace_seconds: float, completed: datetime, now: datetime) -> float:
    """Return the time until an agent should have left by itself after the end of its work."""
    return max(grace_seconds + LEAVE_MARGIN_SECONDS - (now - completed).total_seconds(), 0.0)
