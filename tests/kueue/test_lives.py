"""Whole lives of elastic jobs in a queue, played.

Whatever competes, is cut, deleted, edited, suspended, late, dies or is away:

* granted: no Pod is there without an admitted Workload of its job, and never more than are granted;
* slices: at most one waits;
* refused: nothing is written that Kueue does not take, but for what was decided from an old copy;
* whole: once there is room for all, the job has what it wants, and is charged for that;
* over: once the job has ended, nothing is charged, and nothing is held by a finalizer.
"""

from __future__ import annotations

import pytest

from tests.kueue.life import Life
from tests.played.schedule import play_seeds

SCHEDULES = 400

pytestmark = pytest.mark.played


@pytest.mark.parametrize("part", range(2))
def test_a_job_never_has_more_than_is_granted_and_comes_to_what_it_wants(part: int) -> None:
    play_seeds(lambda seed: Life(seed).play(), SCHEDULES, part, 2)
