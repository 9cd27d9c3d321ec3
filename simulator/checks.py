"""Node checks as a confusion matrix: what benchmarks/diagnosis.py measured of the diagnosis, drawn."""

from __future__ import annotations

import random
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from typing import Any

from simulator.fleet import Diagnosis
from simulator.nodes import name_of
from simulator.planned import PlannedJob


@dataclass(frozen=True)
class Found:
    tested: Mapping[int, int]
    """The nodes that took part, by slot."""
    faulty: tuple[int, ...]
    slow: tuple[int, ...]

    def verdicts(self, job: PlannedJob) -> dict[str, Any]:
        """The fields of a NodeCheck's status that say so."""
        return {
            "nodes": [name_of(node) for node in self.tested.values()],
            "workers": list(self.tested),
            "incarnations": [job.workers[index].spec.incarnation for index in self.tested],
            "faultyNodes": [name_of(node) for node in self.faulty],
            "stragglers": [name_of(node) for node in self.slow],
        }


def judged(
    diagnosis: Diagnosis,
    ill: Collection[int],
    slow: Collection[int],
    tested: Mapping[int, int],
    rng: random.Random,
) -> Found:
    """What a check says of the nodes that it tests, by slot."""
    faulty = tuple(node for node in tested.values() if _happens(_chance(diagnosis, node in ill, rng), rng))
    slower = (node for node in tested.values() if node in slow and node not in faulty)
    return Found(tested, faulty, tuple(n for n in slower if _happens(diagnosis.straggler_found, rng)))


def _happens(chance: float, rng: random.Random) -> bool:
    """Nothing is drawn for what is certain, so that the number of healthy nodes changes no other draw."""
    return chance >= 1 or (chance > 0 and rng.random() < chance)


def _chance(diagnosis: Diagnosis, is_ill: bool, rng: random.Random) -> float:
    """That a node is called faulty."""
    if not is_ill:
        return diagnosis.healthy_blamed
    is_intermittent = _happens(diagnosis.intermittent, rng)
    return diagnosis.intermittent_found if is_intermittent else diagnosis.faulty_found
