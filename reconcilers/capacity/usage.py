"""How much memory a job used, and what each world size gave: `status.usage`. Pure.

Agents report their peaks with what they report anyway. The job keeps the highest, since Pods come and go, and
what each size gave when its round is over. It is written with what is written anyway, and at the job's end:
then it is what is left for the next job of its name (`reconcilers/capacity/profile.py`).
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from crds.agent_report import RoundProgress
from crds.elasticjob import ElasticJob
from crds.elasticworker import ElasticWorker
from crds.job_status import MAX_WORLD_SIZES, ElasticJobStatus, JobUsage, WorldSize
from crds.phases import RendezvousPhase
from crds.rendezvous import Rendezvous
from reconcilers.goodput.rounds import reported_rounds
from reconcilers.observed.slots import training_types
from reconcilers.observed.workers import Workers

MIN_STEPS = 20
"""So many timed steps make a figure."""


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


def with_round(usage: JobUsage, round_: int, workers: int, figures: Iterable[RoundProgress]) -> JobUsage:
    """Returns the usage with a round that has ended; a round is added once."""
    if round_ <= usage.round:
        return usage
    told = next((each for each in figures if each.round == round_), None)
    worlds: Sequence[WorldSize] = usage.worlds
    if told is not None and workers and told.last_step > told.first_step:
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
    return usage.model_copy(update={"round": round_, "worlds": list(worlds)})


def _with_round(rate: Rate, figures: RoundProgress) -> Rate:
    return Rate(
        rate.workers,
        rate.steps + figures.last_step - figures.first_step,
        rate.seconds + figures.stepping_seconds,
        figures.samples_per_step or rate.samples_per_step,
    )


def with_rounds(
    status: ElasticJobStatus, workers: Workers, published: Rendezvous, *, ends: bool
) -> ElasticJobStatus:
    """Adds the round of the published world to the usage, if this look ends it.

    Args:
        ends: the job has ended or is held.
    """
    known, world = status.usage or JobUsage(), status.world
    is_over = ends or world.round > published.round
    if not is_over or not published.round or published.phase is RendezvousPhase.FORMING:
        return status
    told = reported_rounds(workers.telling_steps, since=published.round)
    usage = with_round(known, published.round, len(published.members), told)
    return status if usage == known else status.model_copy(update={"usage": usage})


def with_memory_peaks(job: ElasticJob, status: ElasticJobStatus, workers: Workers) -> ElasticJobStatus:
    """Add the most memory that a Pod of each type has used until now."""
    known = status.usage or JobUsage()
    peaks = {type_: _peak(workers.of_type.get(type_, ())) for type_ in training_types(job)}
    peaks = {type_: max(peak, known.memory_peak_bytes.get(type_, 0)) for type_, peak in peaks.items()}
    used = {type_: peak for type_, peak in peaks.items() if peak}
    if used == known.memory_peak_bytes:
        return status
    return status.model_copy(update={"usage": known.model_copy(update={"memory_peak_bytes": used})})


def _peak(workers: Iterable[ElasticWorker]) -> int:
    reports = (worker.status.agent for worker in workers)
    return max((each.usage.memory_peak_bytes for each in reports if each and each.usage), default=0)
