"""Detection of values that are too low compared to the rest, at a given risk of any false alarm.

It is the generalised extreme Studentized deviate test (Rosner, 1983), one-sided: the lowest value is
removed repeatedly, and the largest number of removals counts after which the lowest was still too far from
the rest. So several low values do not mask each other, and for normal values the whole test has the given
error probability.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from math import exp, inf, sqrt
from statistics import NormalDist, fmean, median, stdev

LEAST_VALUES = 5
"""Minimum number of values with a meaningful spread."""
LEAST_DEGREES = 2


@dataclass(frozen=True)
class Belonging:
    """Statistics of the values without outliers."""

    typical: float
    """Median of these values."""
    lowest: float
    """Limit below which a value is an outlier."""


def belonging(values: Sequence[float], chance: float, most: int) -> Belonging:
    """Return the statistics of the values without those that are too low.

    Args:
        values: at least LEAST_VALUES values in any order; higher is better.
        chance: probability that any value is called too low although nothing is wrong.
        most: maximum number of values that may be too low.
    """
    ordered = sorted(values)
    rest = ordered[_too_low(ordered, chance, most) :]
    count = len(rest)
    deviations = student_quantile(chance / len(ordered), count - 1) * sqrt(1 + 1 / count)
    return Belonging(median(rest), fmean(rest) - deviations * stdev(rest))


def _too_low(ordered: Sequence[float], chance: float, most: int) -> int:
    """Return how many of the lowest values are outliers. Sums accumulate from the highest down, around the
    median."""
    centre = median(ordered)
    found = 0
    total = squares = 0.0
    for place in range(len(ordered) - 1, -1, -1):
        difference = ordered[place] - centre
        total += difference
        squares += difference * difference
        left = len(ordered) - place
        if place >= most or left < LEAST_DEGREES + 2:
            continue
        mean = total / left
        variance = (squares - left * mean * mean) / (left - 1)
        if variance > 0 and (mean - difference) / sqrt(variance) > _critical(chance / left, left):
            found = max(found, place + 1)
    return found


def _critical(chance: float, count: int) -> float:
    """Return the deviation from the mean that one of `count` normal values exceeds with this probability."""
    t = student_quantile(chance, count - 2)
    return (count - 1) * t / sqrt(count * (count - 2 + t * t))


@lru_cache(4_096)
def student_quantile(chance: float, degrees: int) -> float:
    """Return the value that a Student-t variable exceeds with this probability (Wallace's approximation,
    1959)."""
    z = NormalDist().inv_cdf(1 - chance) * (8 * degrees + 3) / (8 * degrees + 1)
    power = z * z / degrees
    return sqrt(degrees * (exp(power) - 1)) if power < 700 else inf
