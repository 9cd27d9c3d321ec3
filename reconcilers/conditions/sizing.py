"""Warnings `Oversized` and `Undersized`: what a job's Pods request, beside what they use. Pure.

They are for people; nothing is changed because of them. Figures are coarse, so that they are seldom written.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial

from crds.job_spec import OptimizeMode
from crds.job_status import JobState, JobWarning, RoleUsage
from reconcilers.conditions.facts import Facts, Trouble
from reconcilers.goodput.goodput import seconds_by_state

OVERSIZED, UNDERSIZED = "Oversized", "Undersized"
TRAINED_SECONDS = 3_600.0
"""Before, what is not used may still be."""
LITTLE = 0.5
"""Share of a request that is used, at most, where it is too large."""
LITTLE_GPU = 0.3
MUCH = 0.9
"""Share of a limit that is used, at least, where it is too small."""
SPARE_BYTES = 2**30
SPARE_CORES = 1.0
"""Spare amounts below this are not worth a warning."""


def oversized(before: JobWarning | None, facts: Facts) -> Trouble | JobWarning | None:
    """Judges what is requested and not used; what is not used at first may still be."""
    return _judge(before, facts, _too_much if _has_trained(facts) else _nothing)


def undersized(before: JobWarning | None, facts: Facts) -> Trouble | JobWarning | None:
    """Judges what is used up."""
    return _judge(before, facts, partial(_too_little, is_known=_has_trained(facts)))


def _judge(
    before: JobWarning | None, facts: Facts, find: Callable[[str, RoleUsage], Iterator[str]]
) -> Trouble | JobWarning | None:
    if facts.job.spec.optimize_mode is OptimizeMode.MANUAL:
        return None
    if facts.usage is None:
        return before
    found = [text for type_, role in sorted(facts.usage.roles.items()) for text in find(type_, role)]
    return Trouble("; ".join(found)) if found else None


def _has_trained(facts: Facts) -> bool:
    goodput = facts.job.status.goodput
    if goodput is None:
        return False
    return seconds_by_state(goodput, facts.now).get(JobState.TRAINING, 0.0) >= TRAINED_SECONDS


def in_short(count: int) -> str:
    """Bytes, to two digits: `61Gi`."""
    for scale, suffix in ((2**40, "Ti"), (2**30, "Gi"), (2**20, "Mi")):
        if count >= scale:
            return f"{float(f'{count / scale:.2g}'):g}{suffix}"
    return f"{count}"


def _nothing(_: str, __: RoleUsage) -> Iterator[str]:
    yield from ()


def _too_much(type_: str, role: RoleUsage) -> Iterator[str]:
    requested, peak = role.memory_bytes, role.memory_peak_bytes
    if requested and peak < LITTLE * requested and requested - peak >= SPARE_BYTES:
        yield f"{type_}: memory {in_short(requested)}, at most {in_short(peak)} used"
    cores, mean = role.cpu_cores, role.cpu_mean_cores
    if cores and mean < LITTLE * cores and cores - mean >= SPARE_CORES:
        yield f"{type_}: {cores:g} CPUs, {mean:.2g} used"
    if role.gpus and role.gpu_utilization is not None and role.gpu_utilization < LITTLE_GPU:
        yield f"{type_}: GPUs compute {5 * round(20 * role.gpu_utilization)} % of the time"


def _too_little(type_: str, role: RoleUsage, is_known: bool) -> Iterator[str]:
    requested, peak = role.memory_bytes, role.memory_peak_bytes
    if requested and peak > MUCH * requested:
        yield f"{type_}: memory {in_short(requested)}, up to {in_short(peak)} used"
    cores, mean = role.cpu_cores, role.cpu_mean_cores
    if cores and is_known and mean > MUCH * cores:
        yield f"{type_}: {cores:g} CPUs, all used"
