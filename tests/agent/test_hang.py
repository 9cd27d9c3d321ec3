from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import replace
from itertools import permutations
from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agent.facts.world import Member
from agent.monitor import flight_recorder, hang_guard, progress, stacks
from agent.monitor.dump import Frame
from agent.monitor.flight_recorder import CollectiveRecord
from agent.monitor.hang import (
    Liveness,
    StepReporting,
    begin,
    look,
    order_by_suspicion,
    step_reporting_of_slot,
)
from agent.monitor.hang_guard import HangGuard, RoundProcesses
from agent.monitor.progress import ProgressFiles, RankProgress
from agent.monitor.stacks import Capture, StackFiles
from crds.agent_report import FailureCause, RankStack
from tests.cli.scripted import Clock

LIMIT = 60.0
ALWAYS = StepReporting(as_first=True, as_other=True)


def told(at: float, step: int = 1, busy_until: float | None = None) -> RankProgress:
    return RankProgress(step, at, busy_until, reports_steps=True)


def watched(*looks: tuple[float, list[RankProgress]], reporting: StepReporting = ALWAYS) -> Liveness:
    """Of processes that were started at 100; each second between the looks, as the agent does it."""
    watch = begin(reporting, first=True, now=100.0)
    before: list[RankProgress] = [RankProgress()]
    for at, processes in looks:
        while watch.looked_at + 1 < at:
            watch = look(watch, before, watch.looked_at + 1)
        watch = look(watch, processes, at)
        before = processes
    return watch


def test_without_a_limit_nothing_hangs() -> None:
    watch = watched((110, [told(110)]))
    assert not (watch.hangs(math.inf, 1e9) or watch.may_hang(math.inf, 1e9))
    assert watch.may_hang(math.inf, 1e9, asked=True)


BUSY = told(110, busy_until=200)


@pytest.mark.parametrize(
    ("looks", "alive_at", "hangs_at"),
    [
        ([(110, [told(110)])], 169, 170.1),
        (
            [(110, [told(110), told(110)]), (169, [told(110), told(168)])],
            457,
            459,
        ),  # one that steps is enough
        ([(279, [RankProgress()])], 279, 281),  # the first step may take three times as long
        ([(110, [told(110)]), (140, [told(140, 2)]), (141, [told(140, 2)])], 289, 291),  # slow steps raise it
        ([(199, [told(199)])], 258, 260),  # a slow start does not
        ([(110, [told(110)]), (259, [BUSY])], 259, 261),  # time in which a process is busy does not count
        ([(110, [told(110)]), (190, [BUSY]), (195, [told(194.9, 2)])], 254, 256),  # and is no slow step
    ],
)
def test_no_step_for_longer_than_the_limit_is_a_hang(
    looks: list[tuple[float, list[RankProgress]]], alive_at: float, hangs_at: float
) -> None:
    for at, is_hang in ((alive_at, False), (hangs_at, True)):
        watch = watched(*looks)
        while watch.looked_at + 1 < at:
            watch = look(watch, looks[-1][1], watch.looked_at + 1)
        assert watch.hangs(LIMIT, at) is is_hang


def test_a_script_that_never_told_a_step_cannot_be_judged() -> None:
    for reported in (RankProgress(), RankProgress(5, 150.0)):  # checkpoints only
        watch = watched((10_000, [reported]), reporting=StepReporting())
        assert not watch.hangs(LIMIT, 10_000) and not watch.may_hang(LIMIT, 10_000)


def test_a_script_that_reports_steps_on_the_first_rank_alone_is_expected_to_do_so_there() -> None:
    reporting = StepReporting().with_step(first=True)
    assert reporting.expects_steps(first=True)
    assert not reporting.expects_steps(first=False), "its rank was taken over by another worker"
    assert StepReporting().with_step(first=False).expects_steps(first=True)


@pytest.mark.parametrize(
    "told",
    [
        {"progress": {"step": 7}},
        {"rounds": [{"round": 1}]},
        {"failure": {"step": 0}},
        {"failure": {"cause": "Hang"}},
    ],
)
def test_slot_whose_earlier_agent_told_steps_is_expected_to(told: dict[str, Any]) -> None:
    members = [Member(0, 1), Member(2, 1)]
    assert step_reporting_of_slot(told, 2, members) == StepReporting(as_other=True)
    assert step_reporting_of_slot(told, 0, members) == StepReporting(as_first=True)
    assert step_reporting_of_slot(told, 1, members) == StepReporting(as_first=True), (
        "it is in no world: it may have been the first"
    )
    assert step_reporting_of_slot(told, 1, []) == StepReporting(as_first=True)


def test_slot_of_which_no_steps_are_known_is_not() -> None:
    for told in ({}, {"failure": {"cause": "OOM"}}, {"failure": None, "progress": None, "rounds": []}):
        assert step_reporting_of_slot(told, 0, []) == StepReporting()


def test_a_container_that_was_frozen_has_not_hung() -> None:
    watch = watched((110, [told(110)]))
    watch = look(watch, [told(110)], 5_000)
    assert not watch.hangs(LIMIT, 5_000)
    assert watch.stalled_seconds(5_000) <= 11


def test_a_machine_that_stood_still_as_long_as_the_limit_has_not_hung() -> None:
    watch = look(watched((110, [told(110)])), [told(110)], 120.3)
    assert not watch.hangs(10.0, 120.3)


def test_in_a_world_that_broke_half_the_limit_is_enough_to_be_suspected() -> None:
    watch = watched((110, [told(110)]), (141, [told(110)]))
    assert watch.may_hang(LIMIT, 141)
    assert not watch.may_hang(LIMIT, 139)


def test_who_is_asked_where_it_hangs_says_so_unless_it_makes_steps() -> None:
    never_told = watched((110, [RankProgress()]), reporting=StepReporting())
    assert never_told.may_hang(LIMIT, 110, asked=True)
    before_its_first_step = begin(ALWAYS, first=False, now=100.0)
    assert not before_its_first_step.may_hang(LIMIT, 131)
    assert before_its_first_step.may_hang(LIMIT, 131, asked=True), "the others had made theirs"
    training = watched((110, [told(110)]), (120, [told(120)]))
    assert not training.may_hang(LIMIT, 121, asked=True)


def test_who_is_silent_for_longer_than_its_steps_take_is_suspected_once_a_collective_has_timed_out() -> None:
    """Its time-out may be far below the limit."""
    training = watched((110, [told(110)]), (110.2, [told(110.2)]))
    assert training.may_hang(1800.0, 112.3, asked=True) and not training.may_hang(1800.0, 112.3)
    busy = watched((110, [told(110)]), (150, [told(110, busy_until=200.0)]))
    assert not busy.may_hang(1800.0, 150.5, asked=True)


@given(st.lists(st.floats(0.01, 9.9), min_size=1, max_size=50), st.floats(10, 1_000))
def test_who_tells_a_step_before_every_look_never_hangs(gaps: list[float], limit: float) -> None:
    watch, now = begin(ALWAYS, first=False, now=0.0), 0.0
    for step, gap in enumerate(gaps):
        now += gap
        watch = look(watch, [told(now - gap / 2, step)], now)
        assert not watch.hangs(limit, now)
        assert not watch.may_hang(limit, now)
    assert watch.hangs(limit, now + max(limit, 5 * 10) + 1), "but once it stops, it does"


@given(
    st.lists(
        st.tuples(
            st.floats(0.1, 30),
            st.one_of(st.none(), st.floats(0, 500)),
            st.one_of(st.none(), st.floats(0, 1_000)),
        ),
        max_size=30,
    )
)
def test_signs_of_life_are_never_in_the_future_nor_taken_back(
    looks: list[tuple[float, float | None, float | None]],
) -> None:
    watch, now = begin(StepReporting(), first=True, now=0.0), 0.0
    for gap, at, busy_until in looks:
        now += gap
        last = None if at is None else min(at, now)
        seen = RankProgress(1 if last else None, last, busy_until, reports_steps=last is not None)
        after = look(watch, [seen], now)
        assert watch.alive_at <= after.alive_at <= now
        assert after.longest_step_seconds >= watch.longest_step_seconds
        watch = after


def stack(rank: int, step: int | None, *, in_collective: bool = False) -> RankStack:
    return RankStack(rank, step, in_collective, "")


def test_who_waits_for_others_is_never_first_nor_who_does_not_say_before_who_does() -> None:
    waits, mute = stack(0, 40, in_collective=True), replace(stack(1, 41), offered=False)
    hangs = stack(2, 41)
    for told in permutations([waits, mute, hangs]):
        assert order_by_suspicion(told) == [hangs, mute, waits]


def test_blamed_is_who_does_not_wait_for_others_and_then_who_is_behind() -> None:
    waiting = [stack(0, 41, in_collective=True), stack(1, 41, in_collective=True)]
    assert order_by_suspicion([*waiting, stack(2, 41, in_collective=False)])[0].rank == 2
    assert order_by_suspicion([*waiting, stack(2, 40, in_collective=True)])[0].rank == 2
    assert order_by_suspicion([*waiting, stack(2, None, in_collective=False)])[0].rank == 2
    assert order_by_suspicion([*waiting, stack(2, None, in_collective=True)])[0].rank == 0, (
        "it may never tell"
    )


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    found = Clock()
    for module in (hang_guard, progress):
        monkeypatch.setattr(module, "time", found)
    return found


@pytest.fixture
def records(monkeypatch: pytest.MonkeyPatch) -> dict[int, CollectiveRecord]:
    """What NCCL has recorded, by local rank."""
    found: dict[int, CollectiveRecord] = {}
    query = SimpleNamespace(answers=lambda: found)
    monkeypatch.setattr(flight_recorder, "RecordQuery", lambda _: query)
    return found


@pytest.fixture
def guard(clock: Clock, records: dict[int, CollectiveRecord]) -> Iterator[HangGuard]:
    """That of ranks 4 and 5, in round 3."""
    files = ProgressFiles()
    found = HangGuard(files, StackFiles(files.directory / "stacks"), ALWAYS)
    found.begin(RoundProcesses(3, {0: 4, 1: 5}))
    yield found
    files.remove()


def capture(file: str, line: int, function: str, source: str = "") -> Capture:
    return Capture("x", (Frame(file, line, function, source),))


TORCH = "/usr/lib/python3/site-packages/torch"
BOTH = {0: 1, 1: 1}


def test_what_nccl_has_recorded_says_who_waits_whatever_the_stack_looks_like(
    guard: HangGuard, records: dict[int, CollectiveRecord], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Rank 4 is in a line of its own that needs a number of the GPU; rank 5 is in torch, and waits for nobody."""
    own = capture("/app/train.py", 8, "main", "while not ends:")
    inside = capture(f"{TORCH}/cuda/__init__.py", 9, "synchronize")
    monkeypatch.setattr(stacks, "capture", lambda *_: {0: own, 1: inside})
    records |= {0: CollectiveRecord("all_reduce 57 of [3] in default_pg"), 1: CollectiveRecord("")}
    found = guard.describe(BOTH, {}, 1, LIMIT)
    assert found is not None and found.rank == 5 and "rank 5, before its first step, is at" in found.message
    waits = next(stack for stack in found.stacks if stack.rank == 4)
    assert waits.in_collective
    assert waits.frames.splitlines()[0] == "NCCL: all_reduce 57 of [3] in default_pg is not completed"
    records[1] = CollectiveRecord("broadcast 57 of [3] in default_pg")
    again = guard.describe(BOTH, {}, 2, LIMIT)
    assert again is not None
    assert "waits for others in NCCL's all_reduce 57 of [3] in default_pg, at" in again.message
    monkeypatch.setattr(stacks, "capture", lambda *_: {})
    assert guard.describe({}, {}, 3, LIMIT) is None, "all have ended meanwhile"


def test_who_waits_in_a_collective_that_nccl_does_not_know_of_is_not_blamed(
    guard: HangGuard, records: dict[int, CollectiveRecord], monkeypatch: pytest.MonkeyPatch
) -> None:
    """It is Gloo's, or the first of a group, whose members connect before it is enqueued. Rank 5 hangs."""
    gather = capture(f"{TORCH}/distributed/distributed_c10d.py", 3075, "all_gather_object")
    own = capture("/app/train.py", 8, "main", "with lock:")
    monkeypatch.setattr(stacks, "capture", lambda *_: {0: gather, 1: own})
    records |= dict.fromkeys(BOTH, CollectiveRecord(""))
    found = guard.describe(BOTH, {}, 1, LIMIT)
    assert found is not None and found.rank == 5


def test_a_process_that_makes_a_step_while_its_stack_is_taken_does_not_hang(
    guard: HangGuard, clock: Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The signal that asks for the stack wakes some calls, such as pause()."""
    clock.now = 1_000.0
    read = iter([told(clock.now - 2 * LIMIT), told(clock.now)])
    newest = [next(read)]
    monkeypatch.setattr(ProgressFiles, "read_rank", lambda *_: newest[0])

    def wake(*_: object) -> dict[int, Capture]:
        newest[0] = next(read, newest[0])
        return {0: capture("/app/train.py", 8, "main", "pause()")}

    monkeypatch.setattr(stacks, "capture", wake)
    guard.look()
    woken = guard.describe({0: 1}, {}, 1, LIMIT)
    assert woken is not None and woken.cause is None and "does not hang" in woken.message
    hangs = guard.describe({0: 1}, {}, 1, LIMIT)
    assert hangs is not None and hangs.cause is FailureCause.HANG
