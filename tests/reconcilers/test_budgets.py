from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from crds.elasticworker import ExitClass
from crds.failure_policy import FailureAction
from crds.job_status import FailureBudget
from reconcilers.failure import budgets
from reconcilers.failure.budgets import ALIKE_LIMIT, CONSEQUENCES_LIMIT, MAX_HOLD_SECONDS, Failed
from reconcilers.failure.meaning import MEANING
from tests.reconcilers.build import NOW, later

USER = ExitClass.USER_ERROR
FREE_CLASSES = [c for c in ExitClass if MEANING[c].free]
SPENDERS = [c for c in ExitClass if not MEANING[c].free]


def failed(
    exit_class: ExitClass = USER, message: str = "ValueError: bad", reached: int | None = None, **more
):
    return Failed(exit_class, message, reached, **more)


def spend(*failures: Failed) -> FailureBudget:
    budget = None
    for each in failures:
        budget = budgets.after(budget, each)
    assert budget is not None
    return budget


def reason(budget: FailureBudget, allowed: int = 3) -> str | None:
    found = budgets.overdrawn(budget, allowed, "training")
    return found.reason if found else None


def different(count: int, exit_class: ExitClass = USER, **more) -> list[Failed]:
    return [failed(exit_class, f"Error{chr(65 + n)}: x", **more) for n in range(count)]


@pytest.mark.parametrize("exit_class", [c for c in SPENDERS if c is not ExitClass.UNKNOWN])
def test_each_class_has_restart_count_of_its_own(exit_class: ExitClass) -> None:
    others = [f for c in SPENDERS if c not in (exit_class, USER, ExitClass.UNKNOWN) for f in different(3, c)]
    assert reason(spend(*others, *different(3, exit_class))) is None
    assert reason(spend(*others, *different(4, exit_class))) == "RestartLimitExceeded"


def test_the_sentence_says_who_how_often_and_why() -> None:
    over = budgets.overdrawn(spend(*different(2, ExitClass.OOM)), 1, "digits-worker-0")
    assert over is not None
    assert over.text == "digits-worker-0 failed 2 times by OOM without getting further, with restartCount 1"
    for ends, classes in (
        (different(2, ExitClass.UNKNOWN), "Unknown"),
        (different(2), "UserError"),
        ([*different(1), *different(1, ExitClass.UNKNOWN)], "Unknown and UserError"),
    ):
        over = budgets.overdrawn(spend(*ends), 1, "w")
        assert over is not None and f"failed 2 times by {classes} without" in over.text
    again = budgets.overdrawn(spend(failed(), failed(), failed()), 9, "training")
    assert again is not None and again.text == (
        "training failed 3 times in a row by the same error without getting further"
    )


@given(st.lists(st.tuples(st.sampled_from(FREE_CLASSES), st.sampled_from("abc")), max_size=40))
def test_what_is_not_the_users_doing_never_fails_the_job(ends: list[tuple[ExitClass, str]]) -> None:
    budget = FailureBudget()
    for exit_class, message in ends:
        budget = budgets.after(budget, failed(exit_class, message))
        assert reason(budget, allowed=0) is None and not budget.spent


@given(st.lists(st.sampled_from("ab"), min_size=1, max_size=12))
def test_ignored_failures_spend_nothing_but_are_not_retried_in_haste(messages: list[str]) -> None:
    ignored = [failed(message=f"{m}Error", action=FailureAction.IGNORE) for m in messages]
    assert reason(spend(*ignored), allowed=0) is None
    assert budgets.hold_seconds(spend(*[ignored[0]] * 6), 30) == 16


@given(st.lists(st.sampled_from("ab"), min_size=3, max_size=12))
def test_the_same_error_three_times_in_a_row_is_enough_however_many_are_allowed(messages: list[str]) -> None:
    budget, run = FailureBudget(), 0
    for number, message in enumerate(messages):
        same = number > 0 and message == messages[number - 1]
        run = run + 1 if same else 1
        budget = budgets.after(budget, failed(message=f"{message}Error: at step {number}"))
        assert (reason(budget, allowed=1_000) == "SameErrorRepeated") is (run >= ALIKE_LIMIT)


@given(st.lists(st.integers(0, 5), max_size=30))
def test_the_ground_that_was_reached_never_shrinks(steps: list[int]) -> None:
    budget, highest = FailureBudget(), None
    for step in steps:
        new = highest is None or step > highest
        before = sum(budget.spent.values())
        budget = budgets.after(budget, failed(reached=step))
        highest = step if new else highest
        assert budget.step == highest
        assert sum(budget.spent.values()) == (1 if new else before + 1)


# --- waiting ----------------------------------------------------------------------------------------


def test_waits_double_from_the_second_failure_on() -> None:
    waits = [budgets.hold_seconds(spend(*different(n)), 30) for n in range(1, 9)]
    assert waits == [0, 1, 2, 4, 8, 16, 30, 30]
    assert budgets.hold_seconds(spend(*different(5, reached=3), failed(reached=4)), 30) == 0


@given(st.integers(1, 2_000), st.booleans())
def test_waits_are_bounded(count: int, follows: bool) -> None:
    budget = FailureBudget(consequences=count) if follows else FailureBudget(alike=count)
    assert 0 <= budgets.hold_seconds(budget, 30) <= MAX_HOLD_SECONDS


def test_the_wait_is_written_down_as_a_time() -> None:
    assert budgets.with_hold(spend(failed()), 30, NOW).held_until is None
    assert budgets.with_hold(spend(*different(3)), 30, NOW).held_until == later(2)
    lasted = budgets.with_hold(spend(*different(3)), 30, NOW, lasted_seconds=budgets.LASTING_SECONDS)
    assert lasted.held_until is None, "it did not come quickly"


# --- consequences -----------------------------------------------------------------------------------

FOLLOWS = failed(ExitClass.UNKNOWN, "Connection closed by peer", follows=True)


def test_a_dead_node_is_noticed_before_its_peers_failures_fail_the_job() -> None:
    for heartbeat_timeout in (5, 30, 300):
        waits = [budgets.hold_seconds(spend(*[FOLLOWS] * n), heartbeat_timeout) for n in range(1, 10)]
        assert sum(waits) > heartbeat_timeout
    assert reason(spend(*[FOLLOWS] * (CONSEQUENCES_LIMIT - 1)), allowed=0) is None
    assert reason(spend(*[FOLLOWS] * CONSEQUENCES_LIMIT)) == "SameErrorRepeated"
    assert reason(budgets.explained(spend(*[FOLLOWS] * CONSEQUENCES_LIMIT))) is None


@given(
    st.lists(st.sampled_from([failed(), *different(2), failed(ExitClass.OOM)]), max_size=5),
    st.sampled_from([failed(), FOLLOWS, failed(ExitClass.HANG, "Hang"), failed(ExitClass.KILLED, "killed")]),
)
def test_a_failure_whose_blame_another_takes_over_is_as_if_it_had_not_been(
    earlier: list[Failed], wrong: Failed
) -> None:
    right = failed(ExitClass.OOM, "the memory cgroup killed it")
    before = spend(*earlier) if earlier else FailureBudget()
    moved = budgets.after(budgets.without(budgets.after(before, wrong), wrong.exit_class.value), right)
    direct = budgets.after(before, right)
    assert (moved.spent, moved.consequences) == (direct.spent, direct.consequences)
