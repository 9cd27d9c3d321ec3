"""Whole lives of elastic jobs in a queue, played.

Whatever competes, is cut, deleted, edited, suspended, late, dies or is away:

* granted: no Pod is there without an admitted Workload of its job, and never more than are granted;
* slices: at most one waits;
* refused: nothing is written that Kueue does not take, but for what was decided from an old copy;
* whole: once there is room for all, the job has what it wants, and is charged for that;
* over: once the job has ended, nothing is charged, and nothing is held by a finalizer.
"""

from __future__ import annotations

import asyncio

import pytest

from tests.kueue.life import Life
from tests.played.schedule import play_seeds

SCHEDULES = 40

pytestmark = pytest.mark.played


@pytest.mark.parametrize("part", range(2))
def test_a_job_never_has_more_than_is_granted_and_comes_to_what_it_wants(part: int) -> None:
    play_seeds(lambda seed: asyncio.run(Life(seed).play()), SCHEDULES, part, 2)


@pytest.mark.parametrize("seed", [77])
async def test_what_has_gone_wrong_once_goes_well(seed: int) -> None:
    """77: workers that were looked at before their queue granted anything were not woken when it did."""
    assert not await Life(seed).play()
