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
from reconcilers.observed.conditions import condition_of, with_condition
from reconcilers.runtime.acts import Event

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


def with_sizing(
    conditions: Sequence[Condition], job: ElasticJob, usage: JobUsage | None, now: datetime
) -> list[Condition]:
    """The conditions, with these two as long as there is something to tell."""
    if job.spec.optimize_mode is OptimizeMode.MANUAL:
        return [condition for condition in conditions if condition.type not in (OVERSIZED, UNDERSIZED)]
    if usage is None:
        return list(conditions)
    is_known = trained_seconds(job, now) >= TRAINED_SECONDS
    over = [text for type_, role in sorted(usage.roles.items()) for text in _too_much(type_, role)]
    under = [
        text for type_, role in sorted(usage.roles.items()) for text in _too_little(type_, role, is_known)
    ]
    changed = _with(conditions, OVERSIZED, over if is_known else [], now)
    return _with(changed, UNDERSIZED, under, now)


def told(before: Sequence[Condition], after: Sequence[Condition]) -> Iterator[Event]:
    """An Event when one of them becomes True."""
    for type_ in (OVERSIZED, UNDERSIZED):
        old, new = condition_of(before, type_), condition_of(after, type_)
        is_true = new is not None and new.status is ConditionStatus.TRUE
        if new is not None and is_true and (old is None or old.status is not ConditionStatus.TRUE):
            yield Event("Normal", type_, new.message)


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


def _with(conditions: Sequence[Condition], type_: str, said: Sequence[str], now: datetime) -> list[Condition]:
    if said:
        return with_condition(conditions, type_, ConditionStatus.TRUE, BY_USE, "; ".join(said), now)
    return [condition for condition in conditions if condition.type != type_]


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
