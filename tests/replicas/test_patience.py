"""How long groups wait for each other, and what a long wait leads to."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack
from queue import Queue

import pytest
import torch
import torch.distributed as dist
from hypothesis import given
from hypothesis import strategies as st
from torch import nn

from crds.grouping import (
    FIRST_STEP_PATIENCE_SECONDS,
    LEAST_PATIENCE_SECONDS,
    MOST_PATIENCE_SECONDS,
    patience_seconds,
)
from dlr.replicas import join
from dlr.replicas import patience as module
from dlr.replicas.patience import LONGEST_PAUSE_SECONDS, Absences, LongWait, Pace, Patience, wait_for
from dlr.replicas.replicas import EXCHANGE_SECONDS, seconds_for

WITHIN_SECONDS = 300.0
ONE_LOOK_SECONDS = 1e6
"""Patience that ends at the first tick, where a wait of so long is a long one; the next look never comes."""


@given(st.floats(0.0, 1e5))
def test_patience_is_three_usual_steps_within_bounds(step_seconds: float) -> None:
    patience = patience_seconds(step_seconds)
    assert LEAST_PATIENCE_SECONDS <= patience <= MOST_PATIENCE_SECONDS
    if LEAST_PATIENCE_SECONDS < patience < MOST_PATIENCE_SECONDS:
        assert patience == 3 * step_seconds


def test_the_usual_step_is_the_median_of_the_last_and_there_is_none_before_the_second() -> None:
    pace = Pace()
    pace.note(100.0)
    assert pace.patience_seconds == FIRST_STEP_PATIENCE_SECONDS
    now = 190.0  # the first step compiles
    pace.note(now)
    assert pace.patience_seconds == 270.0
    for seconds in (5.0, 5.0, 300.0, 5.0):
        now += seconds
        pace.note(now)
    assert pace.patience_seconds == 15.0


@given(st.lists(st.floats(0.0, 10_000.0), min_size=1, max_size=30))
def test_a_group_returns_at_once_and_later_each_time_when_it_is_left_out_again_soon(
    gaps: list[float],
) -> None:
    absences, now, before = Absences(), 0.0, 0.0
    for number, gap in enumerate(gaps):
        now += gap
        pause = absences.pause_seconds(now)
        assert pause <= LONGEST_PAUSE_SECONDS
        if number == 0 or gap >= module.FORGET_ABSENCES_SECONDS:
            assert pause == 0.0
        else:
            assert pause == min(max(2 * before, 2 * LEAST_PATIENCE_SECONDS), LONGEST_PAUSE_SECONDS)
        before = pause


# --- one wait --------------------------------------------------------------------------------------------


class Version:
    """A version of three groups, whose processes are threads here."""

    def __init__(self) -> None:
        self.store = dist.HashStore()
        self.late: Queue[tuple[int, tuple[int, ...]]] = Queue()
        """The groups that a process names, after the place of its own."""
        self.broken: Queue[int] = Queue()
        self.all_wait = threading.Barrier(3)
        """Where processes wait for each other before the patience of one of them begins."""

    def wait(
        self, place: int, seconds: float | None = ONE_LOOK_SECONDS, exchange_seconds: float = 1e9
    ) -> LongWait:
        def late(places: Sequence[int]) -> None:
            self.late.put((place, tuple(places)))

        def patience_seconds() -> float | None:
            self.all_wait.wait(WITHIN_SECONDS)
            return seconds

        patience = Patience(patience_seconds, exchange_seconds, late, lambda: self.broken.put(place))
        return LongWait(place, 3, lambda: self.store, patience)

    def waiting(self) -> list[int]:
        """Return the number of waiting processes of each group."""
        return [self.store.add(f"waiting/{place}", 0) for place in range(3)]


@pytest.fixture
def version(monkeypatch: pytest.MonkeyPatch) -> Iterator[Version]:
    monkeypatch.setattr(module, "QUIET_SECONDS", ONE_LOOK_SECONDS)
    monkeypatch.setattr(module, "TICK_SECONDS", 0.01)
    yield Version()


def wait_until(is_so: Callable[[], object]) -> None:
    deadline = time.monotonic() + WITHIN_SECONDS
    while not is_so():
        assert time.monotonic() < deadline
        time.sleep(0.005)


@pytest.mark.real
def test_one_of_those_that_wait_names_the_groups_that_do_not_and_takes_it_back_when_they_come(
    version: Version,
) -> None:
    threads = [version.wait(place) for place in (0, 0, 2)]
    with ExitStack() as waits:
        for thread in threads:
            waits.enter_context(thread)
        teller, late = version.late.get(timeout=WITHIN_SECONDS)
        assert late == (1,)
        assert version.waiting() == [2, 0, 1]
    assert version.late.get(timeout=WITHIN_SECONDS) == (teller, ())
    for thread in threads:  # one that still waits when another has ended may name that one's group
        thread.join(WITHIN_SECONDS)
    assert version.waiting() == [0, 0, 0]
    version.late, version.all_wait = Queue(), threading.Barrier(2)
    with version.wait(0), version.wait(1):
        assert version.late.get(timeout=WITHIN_SECONDS)[1] == (2,), "another wait, another one that tells"
    assert version.broken.empty()


@pytest.mark.real
def test_a_process_without_the_jobs_state_names_nobody_but_is_seen_to_wait(version: Version) -> None:
    version.all_wait = threading.Barrier(2)
    with version.wait(1, seconds=None, exchange_seconds=0.1), version.wait(0):
        assert version.late.get(timeout=WITHIN_SECONDS) == (0, (2,))
    assert version.late.get(timeout=WITHIN_SECONDS) == (0, ())
    assert version.late.empty() and version.broken.empty()


@pytest.mark.real
def test_an_exchange_to_which_all_have_come_and_that_does_not_end_is_broken(version: Version) -> None:
    with ExitStack() as waits:
        for place in range(3):
            waits.enter_context(version.wait(place, exchange_seconds=0.5))
        version.broken.get(timeout=WITHIN_SECONDS)
        assert version.late.empty()


@pytest.mark.real
def test_a_version_whose_store_is_gone_names_nobody_and_stops_no_training(version: Version) -> None:
    def gone() -> dist.Store:
        raise ConnectionError("the store of group 0 is gone")

    wait = LongWait(0, 3, gone, Patience(lambda: 0.0, 0.0, lambda _: None, lambda: None))
    with wait:
        wait.join(WITHIN_SECONDS)
    assert not wait.is_alive()


@pytest.mark.real
def test_only_a_long_wait_has_a_context_and_what_it_waits_for_is_returned(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(module, "QUIET_SECONDS", 0.1)
    changed, found, long = threading.Condition(), list[str](), list[int]()

    def note() -> ExitStack:
        long.append(1)
        return ExitStack()

    found.append("soon")
    assert wait_for(changed, lambda: found[-1] if found else None, note) == "soon"
    assert not long
    found.clear()

    def come() -> None:
        wait_until(lambda: long)
        with changed:
            found.append("late")
            changed.notify_all()

    threading.Thread(target=come).start()
    assert wait_for(changed, lambda: found[-1] if found else None, note) == "late"
    assert long == [1]


class Counting:
    """A store that counts what it is asked."""

    def __init__(self, store: dist.Store) -> None:
        self._store, self._lock = store, threading.Lock()
        self.requests = 0

    def add(self, key: str, amount: int) -> int:
        with self._lock:
            self.requests += 1
        return int(self._store.add(key, amount))


@pytest.mark.real
def test_one_process_of_all_that_wait_looks_at_all_groups(monkeypatch: pytest.MonkeyPatch) -> None:
    """A job may have a thousand groups, whose processes all wait at once."""
    monkeypatch.setattr(module, "QUIET_SECONDS", ONE_LOOK_SECONDS)
    monkeypatch.setattr(module, "TICK_SECONDS", 0.01)
    groups, store, told = 100, Counting(dist.HashStore()), Queue[Sequence[int]]()
    all_wait = threading.Barrier(groups - 1)

    def patience_seconds() -> float:
        all_wait.wait(WITHIN_SECONDS)
        return ONE_LOOK_SECONDS

    patience = Patience(patience_seconds, 1e9, told.put, lambda: None)
    with ExitStack() as waits:
        for place in range(groups - 1):
            waits.enter_context(LongWait(place, groups, lambda: store, patience))  # type: ignore[arg-type, return-value]
        assert told.get(timeout=WITHIN_SECONDS) == [groups - 1]
        looked = store.requests
    assert looked < 10 * groups


def test_a_group_that_is_left_out_for_weeks_pauses_no_longer_than_it_may() -> None:
    absences, now = Absences(), 0.0
    for _ in range(2_000):
        now += LONGEST_PAUSE_SECONDS
        assert absences.pause_seconds(now) <= LONGEST_PAUSE_SECONDS


def test_a_state_may_be_on_its_way_for_longer_the_larger_it_is() -> None:
    """One that takes longer than its time limit would be sent again and again."""
    parameters = [nn.Parameter(torch.empty(1 << 30, dtype=torch.bfloat16, device="meta")) for _ in range(8)]
    assert 8 * 2 * 60 <= seconds_for(parameters) <= 8 * 2 * 80
    model = nn.Linear(4, 4)
    replicas = join(model, torch.optim.SGD(model.parameters()))
    assert EXCHANGE_SECONDS < replicas._exchange_seconds < EXCHANGE_SECONDS + 1
    replicas.close()
