"""Warning `PodsNotAccepted`: no Pod can be made of a job's template. Pure.

Faults that dlr can find by itself are found before any worker is made. All others are the API server's answer
to the first real Pod, which its worker keeps as a condition (`worker/pod_refusal.py`), so no request is
needed here. A used-up quota, or a right that dlr lacks, is no fault of the template (`WorkersUnscheduled`).

While no Pod of a type could be made, a refusal keeps the job from making more workers, and fails it after
`FAIL_AFTER_SECONDS`. In that time, users can correct the job in place, and objects that are applied with it
(a ServiceAccount, a policy) can arrive; and it is short enough for people who wait for the job's end. A job
that has begun goes on: an edit of its template only affects its next Pods.
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime

from crds.elasticjob import ElasticJob
from crds.job_status import JobWarning
from crds.phases import JobPhase
from reconcilers.failure.memory import refused_with_more
from reconcilers.observed.conditions import warning_of
from reconcilers.observed.resources import memory_checkpoint_fault, quantity_fault
from reconcilers.observed.slots import is_extra, training_types
from reconcilers.observed.worker_state import OF_THE_TEMPLATE, POD_INVALID, stuck_by
from reconcilers.observed.workers import Workers

PODS_NOT_ACCEPTED = "PodsNotAccepted"
FAIL_AFTER_SECONDS = 120.0

NOT_BEGUN = (
    f". Correct the job in place within {FAIL_AFTER_SECONDS:g} s; after that it fails, "
    "and has to be created again"
)
HAS_BEGUN = ". The Pods that exist go on, but no new one can be created: correct the job in place"
SUSPENDED = ". The job is suspended, and could not go on: correct it in place"
HAS_FAILED = ". Correct that, delete the job and create it again"


@dataclass(frozen=True)
class PodRefusal:
    """Pods that cannot be made."""

    warning: JobWarning
    """What is wrong, as it stands when the job has ended."""
    advice: str
    """End of the warning's message while the job goes on."""
    has_begun: bool
    """Whether the job goes on with its present Pods; otherwise it is held, and fails soon."""

    @property
    def warning_with_advice(self) -> JobWarning:
        return self.warning.model_copy(update={"message": self.warning.message + self.advice})

    @property
    def ending(self) -> tuple[str, str]:
        """Reason and message of a job that fails because of it."""
        return str(self.warning.reason), f"no Pod could be made: {self.warning.message}{HAS_FAILED}"

    def is_final(self, job: ElasticJob, now: datetime) -> bool:
        """Whether the job fails now."""
        left_seconds = self.seconds_to_failure(job, now)
        return left_seconds is not None and left_seconds <= 0

    def seconds_to_failure(self, job: ElasticJob, now: datetime) -> float | None:
        """Return the time until the job fails; None for one that has begun."""
        if self.has_begun:
            return None
        since = max(self.warning.since, job.status.start_time or self.warning.since)
        return FAIL_AFTER_SECONDS - (now - since).total_seconds()


Fault = tuple[str, str, str]
"""Type, reason and message of a Pod that cannot be made."""


def judge(job: ElasticJob, workers: Workers, now: datetime, fault: Fault | None = None) -> PodRefusal | None:
    """Judge whether Pods can be made. The time of a refusal starts over with each generation, so that users
    can correct one fault after the other.

    Args:
        fault: a fault that was found elsewhere.
    """
    found = fault or _fault_of_template(job) or _refused_worker(job, workers)
    if found is None:
        return None
    type_, reason, message = found
    begun = has_begun(job, type_, workers)
    before = warning_of(job.status.warnings, PODS_NOT_ACCEPTED)
    goes_on = before is not None and job.status.observed_generation == job.metadata.generation
    advice = SUSPENDED if job.stops else HAS_BEGUN if begun else NOT_BEGUN
    warning = JobWarning(
        type=PODS_NOT_ACCEPTED,
        reason=reason,
        message=message,
        since=before.since if before is not None and goes_on else now.replace(microsecond=0),
    )
    return PodRefusal(warning, advice, begun)


def has_begun(job: ElasticJob, type_: str, workers: Workers) -> bool:
    """Whether the job trains or has trained, or Pods of this type could be made before."""
    if job.status.world.round or job.status.phase in (
        JobPhase.RUNNING,
        JobPhase.SCALING,
        JobPhase.RESTARTING,
    ):
        return True
    mates = workers.of_type.get(type_, ())
    return any(mate.status.pod_uid is not None or mate.spec.incarnation > 1 for mate in mates)


def _fault_of_template(job: ElasticJob) -> Fault | None:
    """Return the first fault that shows without the API server."""
    for type_ in training_types(job):
        path = f"spec.replicaSpecs.{type_}.template"
        template = job.spec.replica_specs[type_].template
        fault = memory_checkpoint_fault(job, type_) or quantity_fault(template, path)
        if fault:
            return type_, POD_INVALID, fault
    return None


def _refused_worker(job: ElasticJob, workers: Workers) -> Fault | None:
    """Return the fault of the first worker whose Pod was refused, an invalid one before all others. Extra
    workers are left out, since the job's growth reports them, and so is memory that dlr itself raised."""
    refused = [
        (OF_THE_TEMPLATE.index(why.reason), worker.spec.type, worker.spec.index, why)
        for worker in workers.exceptional
        if (why := stuck_by(worker)) is not None
        and why.reason in OF_THE_TEMPLATE
        and not is_extra(job, worker)
        and refused_with_more(job, worker) is None
    ]
    if not refused:
        return None
    _, type_, _, why = min(refused, key=lambda each: each[:3])
    return type_, str(why.reason), why.message
