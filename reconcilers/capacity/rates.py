"""How fast worlds of each size train, and what more workers add. Pure.

Steps alone do not tell: with more workers a step may have more samples, or the same number in less time.
Where the script tells how many samples a step has (`dlr.report(step, samples=…)`, `dlr.data`), these
count; else each worker is taken to have its share of its own: more samples a step with more workers.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from crds.job_status import MAX_WORLD_SIZES, JobUsage, WorldSize
from crds.progress import RoundProgress

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
        usage: the rounds that have ended.
        workers: the size of the world that trains.
        figures: of its round.
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
    """Returns the usage with a round that has ended; a round is added once.

    Args:
        round_: its number.
        workers: the size of its world.
        figures: of rounds, as far as agents have told.
    """
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
