"""A week of checks, as benchmarks/records.py plays it: what the records add, and that they blame nobody else."""

from __future__ import annotations

import random

import pytest

from benchmarks.records import Draw, bad_link, flaky_rack, healthy, one_in, play

SEEDS = range(3)


@pytest.mark.parametrize("draw", [healthy(33, 0.01), healthy(9, 0.05), bad_link(12), flaky_rack(32, 8)])
def test_no_healthy_node_is_blamed_by_its_record(draw: Draw) -> None:
    for seed in SEEDS:
        rng = random.Random(seed)
        week = draw(rng)
        assert play(week, rng).by_record <= week.fleet.faulty_nodes


def test_half_of_all_tests_failing_is_found_within_a_week() -> None:
    for seed in SEEDS:
        rng = random.Random(seed)
        week = one_in(33, 0.5, 0.01)(rng)
        found = play(week, rng)
        assert week.fleet.faulty_nodes <= found.by_tests | found.by_record
