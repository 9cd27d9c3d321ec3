"""Conditions `Oversized` and `Undersized`: what a job's Pods ask for, beside what they use. Pure.

They only tell; nothing is changed because of them. Figures are coarse, so that they are seldom written.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from datetime import datetime

from crds.elasticjob import ElasticJob
from crds.job_spec import OptimizeMode
from crds.job_status import JobState, JobUsage, RoleUsage
from crds.model import Condition, ConditionStatus
from reconcilers.observed.conditions import Judgement, State

OVERSIZED, UNDERSIZED = "Oversized", "Undersized"
BY_USE = "MeasuredUse"
"""Reason of both."""
TRAINED_SECONDS = 3_600.0
"""Before, what is not used may still be."""
LITTLE = 0.5
"""Used of what is asked for, at most."""
LITTLE_GPU = 0.3
MUCH = 0.9
"""Used of what is allowed, at least."""
SPARE_BYTES = 2**30
SPARE_CORES = 1.0
"""Less than that is not worth a word."""


def oversized(known: Condition | None, job: ElasticJob, usage: JobUsage | None, now: datetime) -> Judgement:
    """Judges what is asked for and not used; what is not used at first may still be."""
    if job.spec.optimize_mode is OptimizeMode.MANUAL:
        return None
    if usage is None:
        return known
    if trained_seconds(job, now) < TRAINED_SECONDS:
        return None
    return _state([text for type_, role in sorted(usage.roles.items()) for text in _too_much(type_, role)])


def undersized(known: Condition | None, job: ElasticJob, usage: JobUsage | None, now: datetime) -> Judgement:
    """Judges what is used up."""
    if job.spec.optimize_mode is OptimizeMode.MANUAL:
        return None
    if usage is None:
        return known
    is_known = trained_seconds(job, now) >= TRAINED_SECONDS
    return _state(
        [text for type_, role in sorted(usage.roles.items()) for text in _too_little(type_, role, is_known)]
    )


def trained_seconds(job: ElasticJob, now: datetime) -> float:
    known = job.status.goodput
    if known is None:
        return 0.0
    running = (now - known.since).total_seconds() if known.state is JobState.TRAINING else 0.0
    return known.seconds.get(JobState.TRAINING.value, 0.0) + running


def in_short(count: int) -> str:
    """Bytes, to two digits: `61Gi`."""
    for scale, suffix in ((2**40, "Ti"), (2**30, "Gi"), (2**20, "Mi")):
        if count >= scale:
            return f"{float(f'{count / scale:.2g}'):g}{suffix}"
    return f"{count}"


def _state(findings: Sequence[str]) -> State | None:
    return State(ConditionStatus.TRUE, BY_USE, "; ".join(findings)) if findings else None


def _too_much(type_: str, role: RoleUsage) -> Iterator[str]:
    asked, peak = role.memory_bytes, role.memory_peak_bytes
    if asked and peak < LITTLE * asked and asked - peak >= SPARE_BYTES:
        yield f"{type_}: memory {in_short(asked)}, at most {in_short(peak)} used"
    cores, mean = role.cpu_cores, role.cpu_mean_cores
    if cores and mean < LITTLE * cores and cores - mean >= SPARE_CORES:
        yield f"{type_}: {cores:g} CPUs, {mean:.2g} used"
    if role.gpus and role.gpu_utilization is not None and role.gpu_utilization < LITTLE_GPU:
        yield f"{type_}: GPUs compute {5 * round(20 * role.gpu_utilization)} % of the time"


def _too_little(type_: str, role: RoleUsage, is_known: bool) -> Iterator[str]:
    asked, peak = role.memory_bytes, role.memory_peak_bytes
    if asked and peak > MUCH * asked:
        yield f"{type_}: memory {in_short(asked)}, up to {in_short(peak)} used"
    cores, mean = role.cpu_cores, role.cpu_mean_cores
    if cores and is_known and mean > MUCH * cores:
        yield f"{type_}: {cores:g} CPUs, all used"
