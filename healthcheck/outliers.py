"""Values that are too low to belong with the rest, at a given risk of one false one among them all.

The generalised extreme Studentized deviate test (Rosner, 1983), one-sided: the lowest value is removed again
and again, and the largest number counts after which the lowest was still out of line with those left. So
several low values do not hide each other, and the whole test errs, for normal values, with the given
probability.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from math import exp, inf, sqrt
from statistics import NormalDist, fmean, median, stdev

LEAST_VALUES = 5
"""Fewer have no spread that means anything."""
LEAST_DEGREES = 2


@dataclass(frozen=True)
class Belonging:
    """What the values that belong together look like."""

    typical: float
    """Their median."""
    lowest: float
    """A value below this does not belong with them."""


def belonging(values: Sequence[float], chance: float, most: int) -> Belonging:
    """Describe the values without those that are too low.

    Args:
        values: at least LEAST_VALUES, of which more is better; in any order.
        chance: that one of them all is called too low, though nothing is wrong.
        most: how many may be too low.
    """
    ordered = sorted(values)
    rest = ordered[_too_low(ordered, chance, most) :]
    count = len(rest)
    deviations = student_quantile(chance / len(ordered), count - 1) * sqrt(1 + 1 / count)
    return Belonging(median(rest), fmean(rest) - deviations * stdev(rest))


def _too_low(ordered: Sequence[float], chance: float, most: int) -> int:
    """How many of the lowest do not belong. Sums grow from the highest down, around the median."""
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
    """The deviation of one of `count` normal values from their mean that it exceeds by this chance."""
    t = student_quantile(chance, count - 2)
    return (count - 1) * t / sqrt(count * (count - 2 + t * t))


@lru_cache(4_096)
def student_quantile(chance: float, degrees: int) -> float:
    """What a Student-t variable exceeds with this probability (Wallace's approximation, 1959)."""
    z = NormalDist().inv_cdf(1 - chance) * (8 * degrees + 3) / (8 * degrees + 1)
    power = z * z / degrees
    return sqrt(degrees * (exp(power) - 1)) if power < 700 else inf
