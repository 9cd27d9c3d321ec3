"""How long groups wait for each other, and what a long wait leads to."""

from __future__ import annotations

from queue import Queue

import pytest
import torch
import torch.distributed as dist
from hypothesis import given
from hypothesis import strategies as st
from torch import nn

from agent.replicas.facts import VersionGroups
from crds.grouping import (
    FIRST_STEP_PATIENCE_SECONDS,
    LEAST_PATIENCE_SECONDS,
    MOST_PATIENCE_SECONDS,
    patience_seconds,
)
from dlr.replicas import join
from dlr.replicas import patience as module
from dlr.replicas.meetings import EXCHANGE_SECONDS, seconds_for
from dlr.replicas.news import Awaiting, ReportLeftOut, WaitForVersion
from dlr.replicas.patience import (
    FORGET_ABSENCES_SECONDS,
    LONGEST_PAUSE_SECONDS,
    Absences,
    Add,
    Broken,
    GroupPace,
    Late,
    LongWait,
    LongWaitThread,
    Patience,
    ReadWaiting,
)

WITHIN_SECONDS = 300.0


@given(st.floats(0.0, 1e5))
def test_patience_is_three_usual_steps_within_bounds(step_seconds: float) -> None:
    patience = patience_seconds(step_seconds)
    assert LEAST_PATIENCE_SECONDS <= patience <= MOST_PATIENCE_SECONDS
    if LEAST_PATIENCE_SECONDS < patience < MOST_PATIENCE_SECONDS:
        assert patience == 3 * step_seconds


def test_the_usual_step_is_the_median_of_the_last_and_there_is_none_before_the_second() -> None:
    pace = GroupPace()
    pace.note(100.0)
    assert pace.patience_seconds == FIRST_STEP_PATIENCE_SECONDS
    now = 190.0  # the first step compiles
    pace.note(now)
    assert pace.patience_seconds == 270.0
    for seconds in (5.0, 5.0, 300.0, 5.0):
        now += seconds
        pace.note(now)
    assert pace.patience_seconds == 15.0


def test_time_that_a_group_trains_alone_is_no_time_of_a_shared_step() -> None:
    """A peer that hung after an hour without it was waited for as if each step took an hour."""
    pace = GroupPace()
    for now in (0.0, None, None, 3_600.0):
        pace.note(now)
    assert pace.patience_seconds == FIRST_STEP_PATIENCE_SECONDS
    pace.note(3_620.0)
    assert pace.patience_seconds == 60.0


@given(st.lists(st.floats(0.0, 10_000.0), min_size=1, max_size=30))
def test_a_group_returns_at_once_and_later_each_time_when_it_is_left_out_again_soon(
    gaps: list[float],
) -> None:
    absences, now, before = Absences(), 0.0, 0.0
    for number, gap in enumerate(gaps):
        now += gap
        absences, pause = absences.after(now)
        assert pause <= LONGEST_PAUSE_SECONDS
        if number == 0 or gap >= FORGET_ABSENCES_SECONDS:
            assert pause == 0.0
        else:
            assert pause == min(max(2 * before, 2 * LEAST_PATIENCE_SECONDS), LONGEST_PAUSE_SECONDS)
        before = pause


# --- left out --------------------------------------------------------------------------------------------


def membership(version: int, *groups: int) -> VersionGroups:
    return VersionGroups(version, tuple((index, 1) for index in groups), (1, 1))


@pytest.mark.parametrize("has_met", [False, True])
def test_a_process_that_sees_its_group_left_out_says_so_of_each_version_that_it_sees(has_met: bool) -> None:
    """A version with its group may have come and gone before it was seen."""
    awaiting = Awaiting(3, has_met)
    for seen in (None, membership(2, 0)):
        assert awaiting.after(seen, lambda: 0.0) == (awaiting, WaitForVersion())
    for version in (4, 6):
        awaiting, found = awaiting.after(membership(version, 0), lambda: 0.0)
        assert found == ReportLeftOut(version)
        awaiting, found = awaiting.after(membership(version, 0), lambda: 0.0)
        assert found == WaitForVersion()
    assert awaiting.after(membership(7, 0, 1), lambda: 0.0)[1] == membership(7, 0, 1)


def test_a_group_that_is_left_out_again_pauses_before_it_says_so() -> None:
    _, found = Awaiting(1, True, Absences(0, 90.0)).after(membership(1, 0), lambda: 100.0)
    assert found == WaitForVersion(2 * LEAST_PATIENCE_SECONDS)
    _, found = Awaiting(1, True, Absences(0, 90.0)).after(membership(1), lambda: 100.0)
    assert found == ReportLeftOut(1), "no group trains, so none is late"


# --- one wait --------------------------------------------------------------------------------------------


def test_one_that_waits_names_the_groups_that_do_not_and_takes_it_back() -> None:
    wait, acts = LongWait(0, 10.0, 60.0).begin()
    assert acts == (Add("waiting/0", 1),)
    wait, acts = wait.after_tick(4.0)
    assert acts == ()
    wait, acts = wait.after_tick(1.0)
    assert acts == (Add("teller", 1),)
    wait, acts = wait.after_answer(acts[0], 1)
    assert acts == (ReadWaiting(),)
    wait, acts = wait.after_answer(ReadWaiting(), [2, 0, 1])
    assert acts == (Late((1,)),)
    wait, acts = wait.after_tick(10.0)
    assert acts == (ReadWaiting(),)
    assert wait.after_answer(ReadWaiting(), [2, 0, 1])[1] == (), "named already"
    assert wait.end() == (Add("waiting/0", -1), Late(()), Add("teller", -1))


def test_a_process_without_the_jobs_state_names_nobody_but_finds_what_is_broken() -> None:
    wait, _ = LongWait(1, None, 60.0).begin()
    wait, (act,) = wait.after_tick(55.0)
    assert act == Add("teller/without-state", 1)
    wait, _ = wait.after_answer(act, 1)
    assert wait.after_answer(ReadWaiting(), [1, 1, 0])[1] == ()
    assert wait.after_answer(ReadWaiting(), [1, 1, 1])[1] == (Broken(),)


def test_an_exchange_to_which_all_have_come_is_not_broken_before_its_time_limit() -> None:
    wait, _ = LongWait(0, 10.0, 60.0).begin()
    wait, (act,) = wait.after_tick(5.0)
    wait, _ = wait.after_answer(act, 1)
    assert wait.after_answer(ReadWaiting(), [1, 1])[1] == ()
    wait, _ = wait.after_tick(50.0)
    assert wait.after_answer(ReadWaiting(), [1, 1])[1] == (Broken(),)


@pytest.mark.real
def test_a_thread_names_late_groups_by_the_numbers_in_the_store(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "QUIET_SECONDS", 10.0)
    monkeypatch.setattr(module, "TICK_SECONDS", 0.01)
    store, late = dist.HashStore(), Queue[tuple[int, ...]]()  # type: ignore[attr-defined]
    thread = LongWaitThread(1, 3, lambda: store, Patience(lambda: 10.0, 1e9, late.put, lambda: None))
    with thread:
        assert late.get(timeout=WITHIN_SECONDS) == (0, 2)
        assert store.add("waiting/1", 0) == 1
    thread.join()
    assert late.get() == () and store.add("waiting/1", 0) == store.add("teller", 0) == 0


@pytest.mark.real
def test_a_version_whose_store_is_gone_names_nobody_and_stops_no_training() -> None:
    def gone() -> dist.Store:  # type: ignore[name-defined]
        raise ConnectionError("the store of group 0 is gone")

    wait = LongWaitThread(0, 3, gone, Patience(lambda: 0.0, 0.0, lambda _: None, lambda: None))
    with wait:
        wait.join()


def test_a_state_may_be_on_its_way_for_longer_the_larger_it_is() -> None:
    """One that takes longer than its time limit would be sent again and again."""
    parameters = [nn.Parameter(torch.empty(1 << 30, dtype=torch.bfloat16, device="meta")) for _ in range(8)]
    assert 8 * 2 * 60 <= seconds_for(parameters) <= 8 * 2 * 80
    model = nn.Linear(4, 4)
    replicas = join(model, torch.optim.SGD(model.parameters()))
    assert EXCHANGE_SECONDS < replicas._exchange_seconds < EXCHANGE_SECONDS + 1
    replicas.close()
