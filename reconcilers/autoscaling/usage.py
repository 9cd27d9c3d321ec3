"""How much memory a job used, and what each world size gave: `status.usage`. Pure.

Agents report their peaks with what they report anyway. The job keeps the highest, since Pods come and go, and
what each size gave. It is written when a round is over, the last one with the job: then it is what is left
for the next job of its name (`profile.py`).
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from crds.agent_report import RoundProgress
from crds.elasticjob import ElasticJob
from crds.elasticworker import ElasticWorker
from crds.job_status import MAX_WORLD_SIZES, ElasticJobStatus, Episode, JobUsage, WorldSize
from crds.phases import RendezvousPhase
from reconcilers.goodput.rounds import reported_rounds
from reconcilers.observed.slots import training_types
from reconcilers.observed.workers import Workers

MIN_STEPS = 20
"""So many timed steps make a figure."""
RISE = 1.1
"""Factor by which a peak of memory is worth a write for itself."""


@dataclass(frozen=True)
class Rate:
    """Speed of worlds of one size."""

    workers: int
    steps: int = 0
    """Timed."""
    seconds: float = 0.0
    samples_per_step: int | None = None

    @property
    def is_known(self) -> bool:
        return self.steps >= MIN_STEPS and self.seconds > 0

    def speed(self, *, by_samples: bool) -> float:
        """Samples a second; without a number of samples, steps a second times workers."""
        each = (self.samples_per_step or 1) if by_samples else self.workers
        return self.steps / self.seconds * each


def rates_of(usage: JobUsage | None, workers: int, figures: RoundProgress | None) -> dict[int, Rate]:
    """Returns the rates by number of workers.

    Args:
        workers: the size of the world that trains.
    """
    found = {
        size.workers: Rate(size.workers, size.steps, size.seconds, size.samples_per_step)
        for size in (usage.worlds if usage else ())
    }
    if figures is not None and workers:
        found[workers] = _with_round(found.get(workers, Rate(workers)), figures)
    return found


def marginal_efficiency(rates: Mapping[int, Rate], smaller: int, larger: int) -> float | None:
    """What each worker beyond `smaller` adds, as a share of what each of these gives.

    1 is a linear gain; below 0, the larger world is slower. None where one of the two is not known.
    """
    before, after = rates.get(smaller), rates.get(larger)
    if before is None or after is None or not (before.is_known and after.is_known) or larger <= smaller:
        return None
    by_samples = before.samples_per_step is not None and after.samples_per_step is not None
    slow, fast = before.speed(by_samples=by_samples), after.speed(by_samples=by_samples)
    return (fast - slow) / (larger - smaller) / (slow / smaller)


def best_size(rates: Mapping[int, Rate], min_efficiency: float) -> int | None:
    """The largest world that was worth its workers: from each size to the next, as long as these add enough.

    None where no size is known.
    """
    known = sorted(size for size, rate in rates.items() if rate.is_known)
    best = known[0] if known else None
    for size in known[1:]:
        gain = marginal_efficiency(rates, best or size, size)
        if gain is not None and gain >= min_efficiency:
            best = size
    return best


def with_round(usage: JobUsage, workers: int, told: RoundProgress) -> JobUsage:
    """Add a round that is over, of a world of so many workers; a round is added once."""
    if told.round <= usage.round:
        return usage
    worlds: Sequence[WorldSize] = usage.worlds
    if workers and told.last_step > told.first_step:
        rate = rates_of(usage, workers, told)[workers]
        size = WorldSize(
            workers=workers,
            steps=rate.steps,
            seconds=round(rate.seconds, 3),
            samples_per_step=rate.samples_per_step,
        )
        others = [each for each in usage.worlds if each.workers != workers]
        kept = sorted(others, key=lambda each: each.seconds, reverse=True)[: MAX_WORLD_SIZES - 1]
        worlds = sorted([*kept, size], key=lambda each: each.workers)
    return usage.model_copy(update={"round": told.round, "worlds": list(worlds)})


def _with_round(rate: Rate, figures: RoundProgress) -> Rate:
    return Rate(
        rate.workers,
        rate.steps + figures.last_step - figures.first_step,
        rate.seconds + figures.stepping_seconds,
        figures.samples_per_step or rate.samples_per_step,
    )


def is_due(job: ElasticJob) -> bool:
    """Whether a round is over that is not counted in, or the job that has none has something to show."""
    usage, over = job.status.usage, _last_over(job.status)
    is_served = job.status.cluster is not None and not (job.status.finished and usage is not None)
    return is_served or over > (usage.round if usage is not None else 0)


def usage_of(job: ElasticJob, workers: Workers) -> JobUsage | None:
    """The usage with all rounds that are over, and the most memory that a Pod of each type has used by now.

    Of a job without a world, peaks are kept as they rise by a tenth.
    """
    status = job.status
    usage, over, sizes = status.usage or JobUsage(), _last_over(status), sizes_of(status.history)
    if over > usage.round:
        for told in reported_rounds(workers.telling_steps, since=usage.round + 1):
            if told.round <= over:
                usage = with_round(usage, sizes.get(told.round, 0), told)
        usage = usage.model_copy(update={"round": over})
    elif not status.finished and not _have_risen(job, usage, workers):
        return status.usage
    usage = with_memory_peaks(job, usage, workers)
    return usage if status.finished or usage != JobUsage() else None


def _last_over(status: ElasticJobStatus) -> int:
    """The last round that trains no more."""
    world = status.world
    is_over = status.finished or world.phase is RendezvousPhase.FORMING
    return world.round if is_over else max(world.round - 1, 0)


def sizes_of(history: Iterable[Episode]) -> dict[int, int]:
    """The number of workers of the worlds that the history has, by round."""
    return {episode.round: episode.size for episode in history if episode.size is not None}


def with_memory_peaks(job: ElasticJob, usage: JobUsage, workers: Workers) -> JobUsage:
    """Add the most memory that a Pod of each type has used until now."""
    known = usage.memory_peak_bytes
    both = known | _peaks(job, workers)
    highest = {type_: max(peak, known.get(type_, 0)) for type_, peak in both.items()}
    return usage.model_copy(update={"memory_peak_bytes": highest})


def _have_risen(job: ElasticJob, usage: JobUsage, workers: Workers) -> bool:
    known = usage.memory_peak_bytes
    return any(peak > RISE * known.get(type_, 0) for type_, peak in _peaks(job, workers).items())


def _peaks(job: ElasticJob, workers: Workers) -> dict[str, int]:
    peaks = {type_: _peak(workers.of_type.get(type_, ())) for type_ in training_types(job)}
    return {type_: peak for type_, peak in peaks.items() if peak}


def _peak(workers: Iterable[ElasticWorker]) -> int:
    reports = (worker.status.agent for worker in workers)
    return max((each.usage.memory_peak_bytes for each in reports if each and each.usage), default=0)
