from __future__ import annotations

import itertools

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agent.monitor.stepping import LATELY_SECONDS, Stepping, StepReport, with_round
from crds.agent_report import RoundProgress


@given(st.lists(st.integers(0, 20), min_size=1), st.data())
def test_a_round_reaches_from_the_first_step_to_the_highest(steps: list[int], data: st.DataObject) -> None:
    """However a script goes back and forth, and whichever steps are seen."""
    told = [StepReport(float(at), step) for at, step in enumerate(steps)]
    stepping, seen = Stepping(), [told[0]]
    for each in told:
        if data.draw(st.booleans()):
            seen.append(each)
            stepping.observe(0, told[0], each)
    if len(seen) == 1:
        assert stepping.in_round(1) is None
        return
    highest = max(seen, key=lambda t: (t.step, -t.at))
    assert stepping.in_round(1) == RoundProgress(1, steps[0], highest.step, highest.at)


def test_the_process_that_came_furthest_speaks_and_of_equals_the_first() -> None:
    stepping = Stepping()
    stepping.observe(0, StepReport(1, 10), StepReport(5, 14))
    stepping.observe(1, StepReport(2, 10), StepReport(8, 14))
    assert stepping.in_round(3) == RoundProgress(3, 10, 14, 4)
    stepping.observe(1, StepReport(2, 10), StepReport(9, 15))
    assert stepping.in_round(3) == RoundProgress(3, 10, 15, 7)


@given(st.lists(st.floats(0.01, 50), min_size=1, max_size=60))
def test_speed_is_that_of_lately(durations: list[float]) -> None:
    stepping, at, times = Stepping(), 0.0, [0.0]
    stepping.observe(0, StepReport(0, 0), StepReport(0, 0))
    for step, at in enumerate(itertools.accumulate(durations), 1):
        stepping.observe(0, StepReport(0, 0), StepReport(at, step))
        times.append(at)
    late = [t for t in times if at - t < LATELY_SECONDS]
    steps = max(len(late), 1)  # the step that began before, and those since
    begin = times[-1 - steps] if steps < len(times) else times[0]
    expected = (at - begin) / (times.index(at) - times.index(begin))
    assert stepping.seconds_per_step() == pytest.approx(expected)


def test_of_rounds_the_last_ones_are_kept_each_once() -> None:
    rounds: tuple[RoundProgress, ...] = ()
    for number in range(1, 11):
        for last in (1, 2):
            rounds = with_round(rounds, RoundProgress(number, 1, last, 1.0))
    assert [(r.round, r.last_step) for r in rounds] == [(number, 2) for number in range(3, 11)]
    assert with_round(rounds, None) == rounds
