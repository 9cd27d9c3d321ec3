from __future__ import annotations

from dataclasses import dataclass
from datetime import timedelta
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from crds.agent_report import AgentState, RoundProgress
from crds.elasticjob import ElasticJob
from crds.elasticworker import ElasticWorker
from crds.job_status import Goodput, JobState
from reconcilers.goodput.goodput import (
    effective_seconds,
    goodput_now,
    reported_rounds,
    with_rounds,
)
from tests.reconcilers.build import NOW, job, report, worker


def figures(round_: int, first: int, last: int, seconds: float = 0.0) -> RoundProgress:
    return RoundProgress(round=round_, first_step=first, last_step=last, stepping_seconds=seconds)


def member(index: int, *rounds: RoundProgress, **more: Any) -> ElasticWorker:
    spoken = report(index, AgentState.RUNNING, 1, rounds=list(rounds), **more)
    return worker(index, agent=spoken.to_wire())


def submitted(seconds_ago: float = 0.0, **status: Any) -> ElasticJob:
    found = job(status=status)
    created = NOW - timedelta(seconds=seconds_ago)
    return found.model_copy(
        update={"metadata": found.metadata.model_copy(update={"creation_timestamp": created})}
    )


BEGINNING = Goodput(state=JobState.PENDING, since=NOW)


def test_steps_kept_times_seconds_a_step_over_the_time_since_submission() -> None:
    told = [figures(1, 1, 101, 200.0), figures(2, 91, 191, 100.0)]
    goodput = goodput_now(submitted(600), [member(0, *told)], NOW)
    assert (goodput.first_step, goodput.last_step, goodput.steps_redone) == (1, 191, 11)
    assert effective_seconds(goodput) == pytest.approx(191 * 1.5)
    assert goodput.ratio == pytest.approx(191 * 1.5 / 600)


def test_a_job_that_resumes_another_s_checkpoint_kept_what_it_trained_itself() -> None:
    goodput = goodput_now(submitted(100), [member(0, figures(1, 1001, 1011, 20.0))], NOW)
    assert goodput.ratio == pytest.approx(11 * 2 / 100)


@given(
    st.lists(st.tuples(st.integers(0, 2**53), st.integers(0, 2**53), st.floats(0, 1e9)), max_size=4),
    st.floats(0, 1e9),
)
def test_share_of_effective_training_is_a_share_whatever_workers_and_clocks_say(
    told: list[tuple[int, int, float]], age_seconds: float
) -> None:
    rounds = [figures(n, min(a, b), max(a, b), seconds) for n, (a, b, seconds) in enumerate(told, 1)]
    ratio = goodput_now(submitted(age_seconds), [member(0, *rounds)], NOW).ratio
    assert ratio is None or 0.0 <= ratio <= 1.0
    assert goodput_now(submitted(-1.0), [member(0, *rounds)], NOW).ratio is None, "a clock that went back"


def test_of_a_round_the_member_that_came_furthest_speaks_and_of_equals_the_lowest() -> None:
    workers = [
        member(2, figures(1, 1, 9, 3.0)),
        member(1, figures(1, 1, 9, 2.0)),
        member(0, figures(1, 1, 8, 1.0)),
    ]
    assert reported_rounds(workers) == [figures(1, 1, 9, 2.0)]


@dataclass(frozen=True)
class Stretch:
    """One round as its step log would show it."""

    first: int
    steps: int
    step_seconds: float

    @property
    def last(self) -> int:
        return self.first + self.steps - 1

    def figures(self, round_: int, steps: int) -> RoundProgress:
        return figures(round_, self.first, self.first + steps - 1, (steps - 1) * self.step_seconds)


@st.composite
def lives(draw: st.DrawFn) -> list[Stretch]:
    """Rounds that go on where one before them was, or earlier: at a checkpoint."""
    rounds, reached = [], draw(st.integers(0, 5))
    for _ in range(draw(st.integers(1, 6))):
        stretch = Stretch(draw(st.integers(0, reached)), draw(st.integers(1, 9)), draw(st.floats(0.125, 4)))
        rounds.append(stretch)
        reached = max(reached, stretch.last + 1)
    return rounds


@given(lives(), st.data())
def test_whatever_is_seen_of_a_life_the_account_is_what_its_step_log_says(
    life: list[Stretch], data: st.DataObject
) -> None:
    """Looks come at any time; but the end of a round is told before the next one's first step."""
    goodput, ended = BEGINNING, []
    for round_, stretch in enumerate(life, 1):
        for steps in sorted(data.draw(st.lists(st.integers(1, stretch.steps), max_size=3))):
            behind = data.draw(st.integers(1, steps))
            told = [stretch.figures(round_, steps), stretch.figures(round_, behind)]
            workers = [member(index, *ended[-3:], each) for index, each in enumerate(told)]
            if data.draw(st.booleans()):  # or the controller is away
                goodput = with_rounds(goodput, reported_rounds(workers))
        ended.append(stretch.figures(round_, stretch.steps))
        if data.draw(st.booleans()) or len(ended) % 3 == 0:
            goodput = with_rounds(goodput, reported_rounds([member(0, *ended[-3:])]))
            goodput = Goodput.model_validate(goodput.to_wire())  # another controller goes on
    goodput = with_rounds(goodput, reported_rounds([member(0, *ended[-3:])]))

    redone, reached = 0, life[0].first - 1
    for stretch in life:
        redone += max(min(reached, stretch.last) + 1 - stretch.first, 0)
        reached = max(reached, stretch.last)
    assert (goodput.first_step, goodput.last_step) == (min(s.first for s in life), reached)
    assert goodput.steps_redone == redone
    assert goodput.steps_timed == sum(s.steps - 1 for s in life)
    assert goodput.stepping_seconds == pytest.approx(
        sum((s.steps - 1) * s.step_seconds for s in life), abs=1e-4
    )
