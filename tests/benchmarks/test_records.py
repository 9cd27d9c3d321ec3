"""A week of checks, as benchmarks/records.py plays it: what the records add, and that they blame nobody else."""

from __future__ import annotations

import random

import pytest

from benchmarks.diagnosis_faults import Draw, flaky_border, noisy
from benchmarks.records import bad_link, one_in, play

SEEDS = range(3)


@pytest.mark.parametrize(
    "draw", [noisy(33, transient=0.01), noisy(9, transient=0.05), bad_link(12), flaky_border(32, 8)]
)
def test_no_healthy_node_is_blamed_within_a_week(draw: Draw) -> None:
    for seed in SEEDS:
        rng = random.Random(seed)
        fleet = draw(rng)
        found = play(fleet, rng)
        assert found.by_tests | found.by_record <= fleet.faulty_nodes


def test_half_of_all_tests_failing_is_found_within_a_week() -> None:
    for seed in SEEDS:
        rng = random.Random(seed)
        fleet = one_in(33, 0.5)(rng)
        found = play(fleet, rng)
        assert fleet.faulty_nodes <= found.by_tests | found.by_record
