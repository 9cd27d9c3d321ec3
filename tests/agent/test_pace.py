"""A word is said when steps take longer, and none for noise, pauses, or another world."""

from __future__ import annotations

import random
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from statistics import median

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from agent.monitor.pace import LEAST_PAST, RECENT, ProcessPace, Window
from crds.agent_report import Slow
from crds.wire import from_wire

BEGIN = datetime(2026, 1, 1, tzinfo=UTC)
Noise = Callable[[random.Random], float]

STUDENT: Noise = lambda draw: 1 + 0.05 * draw.gauss(0, 1) / (draw.gammavariate(1.5, 2) / 3) ** 0.5  # noqa: E731
NOISES: dict[str, Noise] = {
    "t3 of 5 %": STUDENT,
    "lognormal": lambda draw: draw.lognormvariate(0, 1),
    "Pareto without a mean": lambda draw: draw.paretovariate(1.0),
    "two modes": lambda draw: 3.0 if draw.random() < 0.3 else 1.0,
}


class Job:
    """Feeds windows of five steps each."""

    def __init__(self, world_size: int = 4) -> None:
        self.pace = ProcessPace()
        self.pace.begin(world_size)
        self.windows = 0
        self.words: list[Slow] = []

    def train(self, windows: int, seconds: Callable[[], float]) -> None:
        for _ in range(windows):
            before, since = self.pace.slow, BEGIN + timedelta(seconds=self.windows)
            self.pace.add(Window(since, 5 * self.windows, median(seconds() for _ in range(5))))
            self.windows += 1
            if self.pace.slow is not None and self.pace.slow != before:
                self.words.append(self.pace.slow)


@pytest.mark.parametrize("noise", NOISES)
def test_noise_alone_is_never_called_slow(noise: str) -> None:
    for seed in range(8):
        draw, job = random.Random(seed), Job()
        job.train(1_000, lambda draw=draw: NOISES[noise](draw))  # type: ignore[misc]
        assert job.words == []


@given(
    factor=st.floats(1.35, 20.0),
    usual=st.floats(1e-3, 100.0),
    past=st.integers(LEAST_PAST + RECENT, 300),
    seed=st.integers(0, 1_000),
)
def test_a_rise_is_told_once_with_its_beginning_and_its_size(
    factor: float, usual: float, past: int, seed: int
) -> None:
    draw, job = random.Random(seed), Job()
    job.train(past, lambda: usual * STUDENT(draw))
    job.train(200, lambda: usual * factor * STUDENT(draw))
    (word,) = job.words
    assert abs(word.step - 5 * past) <= 10 and abs((word.since - BEGIN).total_seconds() - past) <= 2
    assert word.usual_seconds == pytest.approx(usual, rel=0.05)
    assert word.seconds_per_step == pytest.approx(factor * usual, rel=0.08)
    job.train(200, lambda: usual * STUDENT(draw))
    assert job.pace.slow is None, "it is taken back"
    job.train(100, lambda: usual * factor * STUDENT(draw))
    assert len(job.words) == 2, "what was slow has not become usual"


@settings(max_examples=30, deadline=None)
@given(every=st.integers(2, 50), pause=st.floats(1.0, 1_000.0))
def test_a_checkpoint_now_and_then_is_no_slow_down(every: int, pause: float) -> None:
    """Longer and longer ones, which began only when the job had a past."""
    job, steps = Job(), 0

    def step() -> float:
        nonlocal steps
        steps += 1
        return 1.0 + (pause * steps / 1_000 if steps > 500 and steps % (5 * every) == 0 else 0.0)

    job.train(600, step)
    assert job.words == []


@given(sizes=st.lists(st.sampled_from([2, 4, 8]), min_size=2, max_size=12))
@settings(max_examples=30, deadline=None)
def test_worlds_of_another_size_have_a_pace_of_their_own(sizes: list[int]) -> None:
    """A smaller world makes slower steps, each at its own pace, and that is all there is to it."""
    job = Job()
    for size in sizes:
        job.pace.begin(size)
        job.train(60, lambda size=size: 8.0 / size)  # type: ignore[misc]
    assert job.words == []
    job.pace.begin(sizes[-1])
    job.train(RECENT, lambda: 16.0 / sizes[-1])
    assert len(job.words) == 1, "but twice as long at this size is slow"


def test_a_successor_goes_on_with_what_is_known() -> None:
    slow = Slow(BEGIN, 7, 2.0, 1.0)
    assert from_wire(Slow, slow.to_wire()) == slow
    pace = ProcessPace(slow, [(4, 1.0)] * LEAST_PAST, 4)
    pace.begin(4)
    for number in range(RECENT):
        assert pace.slow == slow
        pace.add(Window(BEGIN, number, 1.0))
    assert pace.slow is None
