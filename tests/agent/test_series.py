"""A job's past is bounded however long it is, of all of its time, and goes from one agent to the next."""

from __future__ import annotations

import json
from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from itertools import pairwise

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pydantic import TypeAdapter

from agent.monitor.series import WINDOW_SAMPLES, SeriesDraft, Windows
from agent.monitor.stepping import StepReport
from crds.agent_report import MAX_POINTS, Series, SeriesPoint
from crds.wire import from_wire

READER = TypeAdapter(Series)
BEGIN = datetime(2026, 1, 1, tzinfo=UTC)


def point(step: int, **numbers: float) -> SeriesPoint:
    return SeriesPoint(step, BEGIN + timedelta(seconds=step), 4, 1.0, numbers, {"cpuCores": 2.0 * step})


def series_of(windows: int) -> Series:
    history = SeriesDraft(Series())
    for step in range(1, windows + 1):
        history = history.with_window(point(step, loss=float(step)))
    return history.series


@settings(deadline=None, max_examples=40)
@given(st.integers(1, 3_000))
def test_points_are_few_evenly_spread_and_all_windows_are_in_their_means(windows: int) -> None:
    series = series_of(windows)
    steps = [each.step for each in series.points]
    assert len(steps) <= MAX_POINTS and len(steps) >= min(windows, MAX_POINTS // 2) - 1
    assert series.latest is not None and series.latest.step == windows
    gaps = {later - earlier for earlier, later in pairwise(steps)}
    assert gaps <= {series.every}
    first = steps[0] - series.every
    assert all(point.usage["cpuCores"] == 2 * point.numbers["loss"] for point in series.points)
    mean = sum(each.numbers["loss"] for each in series.points) / len(steps)
    assert mean == pytest.approx(sum(range(first + 1, steps[-1] + 1)) / (steps[-1] - first), rel=0.02, abs=1)


@settings(deadline=None, max_examples=20)
@given(st.integers(1, 500))
def test_what_is_told_is_as_the_resource_has_it_and_a_successor_goes_on_with_it(windows: int) -> None:
    series = series_of(windows)
    told = json.loads(json.dumps(series.to_wire()))
    assert READER.validate_python(told) == from_wire(Series, told) == series
    assert len(json.dumps(told)) < 16_000


def windows_of(reports: Sequence[tuple[float, int]], **numbers: float) -> list[tuple[int, float, bool]]:
    """Of reports (time, step): each window's last step, its median, and whether it is judged."""
    found, windows = [], Windows(4)
    for at, step in reports:
        if got := windows.look(StepReport(at, step), numbers, at, BEGIN, busy=False):
            found.append((got[0].step, round(got[0].seconds_per_step, 6), got[1] is not None))
    return found


def test_a_window_is_of_five_looks_with_a_new_step_and_the_first_is_not_judged() -> None:
    steady = [(0.5 * step, step) for step in range(1, 2 * WINDOW_SAMPLES + 2)]
    assert windows_of([*steady, steady[-1]]) == [(6, 0.5, False), (11, 0.5, True)]


def test_steps_that_go_back_and_times_of_no_step_say_nothing() -> None:
    reports = [(1.0, 10), (2.0, 11), (50.0, 4), (51.0, 5), (52.0, 6), (53.0, 7), (54.0, 8)]
    assert windows_of(reports) == [(8, 1.0, False)]
    windows = Windows(4)
    seen = [
        windows.look(StepReport(at, step), {}, at, BEGIN, busy=busy)
        for at, step, busy in [(1.0, 1, False), (1.0, 1, True), (900.0, 2, False), (901.0, 3, False)]
    ]
    assert seen == [None] * 4 and windows._paces == [1.0], "the evaluation is in no window"
