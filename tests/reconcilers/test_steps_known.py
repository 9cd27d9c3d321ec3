"""Whether steps are known, and which of them compare."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import pytest

from crds.agent_report import AgentFailure, AgentState, FailureCause, RankStack, RoundProgress, StepProgress
from crds.elasticjob import ElasticJob
from crds.elasticworker import ElasticWorker
from crds.job_status import Goodput, JobState, JobWarning
from reconcilers.conditions.reported import NO_STEPS, START_UNKNOWN, seconds_to_notice
from reconcilers.goodput.goodput import effective_seconds, goodput_now, with_comparable_steps, with_rounds
from reconcilers.observed.workers import Workers
from tests.reconcilers.build import NOW, job, later, report, worker
from tests.reconcilers.judging import judge, warnings, with_status
from tests.reconcilers.test_goodput import BEGINNING, submitted

TOLD = RoundProgress(round=1, first_step=1_001, last_step=1_010, stepping_seconds=9.0)
COUNTED = RoundProgress(round=1, first_step=1, last_step=10, stepping_seconds=9.0, counted=True)


def member(index: int, *rounds: RoundProgress, **more: Any) -> ElasticWorker:
    return worker(index, agent=report(index, AgentState.RUNNING, 1, rounds=list(rounds), **more).to_wire())


def training(trained_seconds: float = 0.0, hang_timeout_seconds: int = 100, **status: Any) -> ElasticJob:
    """It has trained for so long, in two worlds."""
    goodput = Goodput(
        state=JobState.TRAINING,
        since=later(-trained_seconds / 2),
        seconds={"Pending": 1_000.0, "Training": trained_seconds / 2},
    )
    policy = {"hangTimeoutSeconds": hang_timeout_seconds}
    return job(elasticPolicy=policy, status={"goodput": goodput.to_wire(), **status})


def judged(known: JobWarning | None, of: ElasticJob, workers: Sequence[ElasticWorker]) -> JobWarning | None:
    of = with_status(of, warnings=[known] if known is not None else [])
    return warnings(judge(of, NO_STEPS, workers=workers)[0]).get(NO_STEPS)


def test_a_script_that_tells_no_step_in_three_limits_of_training_is_said_to_be_one() -> None:
    workers = [member(0), member(1)]
    assert judged(None, training(299), workers) is None
    assert seconds_to_notice(training(299), workers, NOW) == pytest.approx(1)
    warning = judged(None, training(301), workers)
    assert warning is not None
    assert warning.message.startswith("no step in 5 min of training: hangs are not found")
    noticed = training(301, warnings=[warning.to_wire()])
    assert seconds_to_notice(noticed, workers, NOW) is None, "once"
    assert judged(warning, noticed, workers) == warning


def test_what_is_not_training_is_not_waited_for() -> None:
    waiting = job(status={"goodput": Goodput(state=JobState.PENDING, since=later(-10_000)).to_wire()})
    assert seconds_to_notice(waiting, [member(0)], NOW) is None
    assert judged(None, waiting, [member(0)]) is None
    assert judged(None, job(), []) is None


@pytest.mark.parametrize("figures", [COUNTED, TOLD])
def test_the_first_step_ends_the_warning_for_good_and_the_account_has_whose_step_it_is(
    figures: RoundProgress,
) -> None:
    late = training(400)
    warning = judged(None, late, [member(0)])
    assert warning is not None and judged(warning, late, [member(0, figures)]) is None
    assert seconds_to_notice(late, [member(0, figures)], NOW) is None
    goodput = goodput_now(late, [member(0, figures)], NOW)
    assert goodput.latest is not None and goodput.latest.counted == figures.counted
    known = with_status(late, goodput=goodput)
    assert seconds_to_notice(known, [member(0)], NOW) is None and judged(None, known, [member(0)]) is None


def test_a_start_that_nobody_knows_the_step_of_is_said_to_cost_goodput() -> None:
    first = with_rounds(BEGINNING, [COUNTED])
    numbered = replace(COUNTED, round=2, first_step=9, last_step=20)
    anew = replace(COUNTED, round=2)
    after_such_a_start = replace(numbered, start_unknown=True)
    for goodput, expected in (
        (first, False),
        (with_rounds(first, [numbered]), False),
        (with_rounds(first, [anew]), True),
        (with_rounds(first, [after_such_a_start]), True),
    ):
        known = job(status={"goodput": goodput.to_wire()})
        assert (START_UNKNOWN in warnings(judge(known, workers=[member(0, COUNTED)])[0])) == expected


def test_counts_say_nothing_beside_those_who_tell() -> None:
    """Rank 0 tells its steps, as many scripts do, and the others are counted: they do not lag behind."""
    failure = AgentFailure(
        sequence=1,
        round=1,
        cause=FailureCause.HANG,
        step=10,
        stacks=[RankStack(rank=1, step=10, frames="a.py:1 in f: g()")],
        time=NOW,
    )
    told, counted = member(0, TOLD), member(1, COUNTED, failure=failure)
    saver = member(2, COUNTED, progress=StepProgress(step=10, time=NOW, checkpoint_step=1_005))
    first, second, third = with_comparable_steps(job(), Workers([told, counted, saver]))
    assert first is told
    assert third.status.agent is not None
    assert third.status.agent.progress == StepProgress(step=1_005, time=NOW, checkpoint_step=1_005)
    said = second.status.agent
    assert said is not None and said.failure is not None
    assert (said.progress, said.rounds, said.failure.step) == (None, (), None)
    assert [(stack.step, stack.frames) for stack in said.failure.stacks] == [(None, "a.py:1 in f: g()")]


def test_what_is_told_or_counted_everywhere_stays_as_it_is() -> None:
    for rounds in ((TOLD, TOLD), (COUNTED, COUNTED), (COUNTED, None), (TOLD, None)):
        workers = Workers(member(index, *filter(None, [figures])) for index, figures in enumerate(rounds))
        assert with_comparable_steps(job(), workers) is workers


def test_counts_stay_out_while_the_one_who_tells_has_a_new_pod() -> None:
    goodput = with_rounds(BEGINNING, [TOLD])
    known = job(status={"goodput": goodput.to_wire()})
    others = Workers([member(0), member(1, replace(COUNTED, round=2))])
    assert [w.status.agent.rounds for w in with_comparable_steps(known, others) if w.status.agent] == [(), ()]
    assert goodput_now(known, others, NOW).last_step == 1_010


def test_goodput_forgets_what_was_counted_when_the_script_tells_its_first_step() -> None:
    before = goodput_now(submitted(100), [member(1, COUNTED)], NOW)
    assert (before.first_step, before.last_step, effective_seconds(before)) == (1, 10, pytest.approx(10))
    after = with_rounds(before, [TOLD])
    assert (after.first_step, after.last_step, after.steps_redone) == (1_001, 1_010, 0)
    assert effective_seconds(after) == pytest.approx(10)
    later_counts = replace(COUNTED, round=2)
    assert with_rounds(after, [later_counts]) == after
