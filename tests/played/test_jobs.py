"""Whole lives of jobs, with the product's reconcilers and agents in them: what must hold of every one.

    DLR_SCHEDULES=100000 DLR_FIRST_SEED=0 pytest -n 16 tests/played/test_jobs.py

plays that many by hand, and `DLR_SCHEDULES=1 DLR_FIRST_SEED=89` the life of one seed alone.
"""

from __future__ import annotations

import pytest

from tests.played.jobs import Life, play
from tests.played.schedule import BY_HAND, FIRST, play_seeds

pytestmark = [pytest.mark.played, pytest.mark.timeout(0 if BY_HAND else 900)]
SEEDS = 160
PARTS = max(BY_HAND // 1_000, 1) if BY_HAND else 8
"""Tests among which the seeds are shared, so that processes can play them side by side."""


@pytest.mark.parametrize("part", range(PARTS))
def test_any_life_of_a_job(part: int) -> None:
    play_seeds(play, SEEDS, part, PARTS)


def test_a_seed_replays_the_same_life() -> None:
    traces = []
    for _ in range(2):
        life = Life(FIRST + 3)
        life.play()
        traces.append(life.cluster.schedule.trace)
    assert traces[0] == traces[1] and len(traces[0]) > 100
