"""`status.usage`: the memory that a job used, and the speed of each world size. Pure.

Agents report their peaks with their other figures. The job keeps the highest, since Pods come and go, and the
speed of each size. It is written when a round is over, the last one with the job, and is then the history for
the next job of its name (`profile.py`).
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import TypeGuard

from crds.agent_report import RoundProgress
from crds.elasticjob import ElasticJob
from crds.job_status import MAX_WORLD_SIZES, ElasticJobStatus, Episode, JobUsage, WorldSize
from crds.phases import RendezvousPhase
from reconcilers.goodput.goodput import reported_rounds
from reconcilers.observed.slots import training_types
from reconcilers.observed.workers import Workers

MIN_STEPS = 20
"""Number of timed steps that make a speed."""


def rates_of(usage: JobUsage | None, workers: int, figures: RoundProgress | None) -> dict[int, WorldSize]:
    """The speeds of worlds, by number of workers.

    Args:
        workers: size of the world that trains.
        figures: figures of that world so far.
    """
    found = {size.workers: size for size in (usage.worlds if usage else ())}
    if figures is not None and workers:
        known = found.get(workers) or WorldSize(workers=workers, steps=0, seconds=0.0)
        update = {
            "steps": known.steps + figures.last_step - figures.first_step,
            "seconds": round(known.seconds + figures.stepping_seconds, 3),
            "samples_per_step": figures.samples_per_step or known.samples_per_step,
        }
        found[workers] = known.model_copy(update=update)
    return found


def is_known(rate: WorldSize | None) -> TypeGuard[WorldSize]:
    """Whether there are enough steps for a speed."""
    return rate is not None and rate.steps >= MIN_STEPS and rate.seconds > 0


def _speed(rate: WorldSize, *, by_samples: bool) -> float:
    """Samples per second; without a number of samples, steps per second times workers."""
    each = (rate.samples_per_step or 1) if by_samples else rate.workers
    return rate.steps / rate.seconds * each


def marginal_efficiency(rates: Mapping[int, WorldSize], smaller: int, larger: int) -> float | None:
    """The speed that each worker beyond `smaller` adds, as a share of the speed of each of these.

    1 is a linear gain; below 0, the larger world is slower. None if one of the two has no speed.
    """
    before, after = rates.get(smaller), rates.get(larger)
    if not is_known(before) or not is_known(after) or larger <= smaller:
        return None
    by_samples = before.samples_per_step is not None and after.samples_per_step is not None
    slow, fast = _speed(before, by_samples=by_samples), _speed(after, by_samples=by_samples)
    return (fast - slow) / (larger - smaller) / (slow / smaller)


def best_size(rates: Mapping[int, WorldSize], min_efficiency: float) -> int | None:
    """The largest world whose additional workers, from each size to the next, add enough speed.

    None if no size has a speed.
    """
    known = sorted(size for size, rate in rates.items() if is_known(rate))
    best = known[0] if known else None
    for size in known[1:]:
        gain = marginal_efficiency(rates, best or size, size)
        if gain is not None and gain >= min_efficiency:
            best = size
    return best


def with_round(usage: JobUsage, workers: int, figures: RoundProgress) -> JobUsage:
    """Add a round that is over, of a world of this size."""
    worlds: Sequence[WorldSize] = usage.worlds
    if workers and figures.last_step > figures.first_step:
        size = rates_of(usage, workers, figures)[workers]
        others = [each for each in usage.worlds if each.workers != workers]
        kept = sorted(others, key=lambda each: each.seconds, reverse=True)[: MAX_WORLD_SIZES - 1]
        worlds = sorted([*kept, size], key=lambda each: each.workers)
    return usage.model_copy(update={"round": figures.round, "worlds": list(worlds)})


def is_due(job: ElasticJob) -> bool:
    """Whether a round is over that is not counted yet, or a job without a world has ended."""
    usage, over = job.status.usage, _last_over(job.status)
    has_ended = job.status.cluster is not None and job.status.finished and usage is None
    return has_ended or over > (usage.round if usage is not None else 0)


def usage_of(job: ElasticJob, workers: Workers) -> JobUsage:
    """The usage with all rounds that are over, and the present peaks of memory."""
    status = job.status
    usage, over, sizes = status.usage or JobUsage(), _last_over(status), sizes_of(status.history)
    for figures in reported_rounds(workers.reporting_steps, since=usage.round + 1):
        if figures.round <= over:
            usage = with_round(usage, sizes.get(figures.round, 0), figures)
    return with_memory_peaks(job, usage.model_copy(update={"round": over}), workers)


def _last_over(status: ElasticJobStatus) -> int:
    """The last round that is over."""
    world = status.world
    is_over = status.finished or world.phase is RendezvousPhase.FORMING
    return world.round if is_over else max(world.round - 1, 0)


def sizes_of(history: Iterable[Episode]) -> dict[int, int]:
    """The sizes of the worlds in the history, by round."""
    return {episode.round: episode.size for episode in history if episode.size is not None}


def with_memory_peaks(job: ElasticJob, usage: JobUsage, workers: Workers) -> JobUsage:
    """Add the highest memory that a Pod of each type has used so far."""
    peaks = dict(usage.memory_peak_bytes)
    for type_ in training_types(job):
        for worker in workers.of_type.get(type_, ()):
            report = worker.status.agent
            if report is not None and report.usage is not None and report.usage.memory_peak_bytes:
                peaks[type_] = max(report.usage.memory_peak_bytes, peaks.get(type_, 0))
    return usage.model_copy(update={"memory_peak_bytes": peaks})
