"""Node checks as a confusion matrix: what benchmarks/diagnosis.py measured of the diagnosis, drawn."""

from __future__ import annotations

import random
from collections.abc import Collection, Iterable

from simulator.fleet import Diagnosis


def judged(
    diagnosis: Diagnosis,
    ill: Collection[int],
    slow: Collection[int],
    tested: Iterable[int],
    rng: random.Random,
) -> tuple[list[int], list[int]]:
    """The tested nodes that a check calls faulty, and those that it calls slow."""
    tested = list(tested)
    faulty = [node for node in tested if _happens(_chance(diagnosis, node in ill, rng), rng)]
    slower = (node for node in tested if node in slow and node not in faulty)
    return faulty, [node for node in slower if _happens(diagnosis.straggler_found, rng)]


def _happens(chance: float, rng: random.Random) -> bool:
    """Nothing is drawn for what is certain, so that the number of healthy nodes changes no other draw."""
    return chance >= 1 or (chance > 0 and rng.random() < chance)


def _chance(diagnosis: Diagnosis, is_ill: bool, rng: random.Random) -> float:
    """The chance that a node is called faulty."""
    if not is_ill:
        return diagnosis.healthy_blamed
    is_intermittent = _happens(diagnosis.intermittent, rng)
    return diagnosis.intermittent_found if is_intermittent else diagnosis.faulty_found
