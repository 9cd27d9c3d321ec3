"""The vote, played with agents, messages and training processes that take any time, in any order."""

from __future__ import annotations

import heapq
import itertools
import random
from collections.abc import Callable
from dataclasses import dataclass, field

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from agent.supervision.vote import (
    DECISION_SECONDS,
    HOLD_SECONDS,
    SETTLE_SECONDS,
    SLACK_SECONDS,
    Chair,
    Kind,
    Message,
    Sent,
    Stage,
    Voter,
)
from crds.checkpoint_files import KeptIn
from crds.progress_record import GO_ON, leave_at
from dlr.checkpoint import leaving

LAST_STEP = 200
LOOK_SECONDS = 0.05
"""Of a held process. Longer than it is, for the sake of the test's own time."""


@dataclass
class Process:
    """A training process: its words, and where it is."""

    ended: int = -1
    order: int = GO_ON
    begun: int = 0
    left_after: int | None = None
    tier: str | None = None
    waits: bool = False
    dead: bool = False


@dataclass
class Play:
    """A round of agents and their processes, on one clock, with one queue of what happens next."""

    chance: random.Random
    agents: int
    local: int
    step_seconds: float
    delay_seconds: float
    lockstep: bool
    silent: frozenset[int] = frozenset()
    """Agents that never look at what they get."""
    mute: frozenset[int] = frozenset()
    """Agents whose processes do not take part."""
    now: float = 100.0
    queue: list[tuple[float, int, Callable[[], None]]] = field(default_factory=list)
    count: itertools.count[int] = field(default_factory=itertools.count)

    def __post_init__(self) -> None:
        self.chair = Chair(self.agents)
        self.voters = [Voter() for _ in range(self.agents)]
        self.gone: set[int] = set()
        self.left: set[int] = set()
        self.processes = [[Process() for _ in range(self.local)] for _ in range(self.agents)]
        self.line: dict[tuple[int, int], float] = {}
        for rank in range(self.agents):
            self.chair.join(rank)
            for process in self.processes[rank]:
                self.later(self.chance.random() * self.step_seconds, lambda p=process: self.enter(p))

    def later(self, seconds: float, act: Callable[[], None]) -> None:
        heapq.heappush(self.queue, (self.now + seconds, next(self.count), act))

    def run(self, until: float) -> None:
        while self.queue and self.queue[0][0] <= until:
            self.now, _, act = heapq.heappop(self.queue)
            act()
            self.deadlines()
        self.now = until
        self.deadlines()

    # Training: each step has a collective that all must have entered, and takes any time after it.

    def everybody(self) -> list[Process]:
        return [process for local in self.processes for process in local]

    def enter(self, process: Process) -> None:
        if process.dead:
            return
        process.begun = process.ended + 1
        process.waits = True
        self.collective()

    def collective(self) -> None:
        for process in self.everybody():
            if process.waits and (
                not self.lockstep or all(p.begun >= process.begun for p in self.everybody())
            ):
                process.waits = False
                self.later(self.any(self.step_seconds), lambda p=process: self.finish(p))

    def finish(self, process: Process) -> None:
        if process.dead:
            return
        process.ended = process.begun
        self.boundary(process)

    def boundary(self, process: Process) -> None:
        if process.dead:
            return
        if leaving.is_held(process.order, self.now):
            self.later(LOOK_SECONDS, lambda: self.boundary(process))
            return
        process.tier = leaving.tier_to_leave(process.order, process.ended)
        if process.tier is not None:
            process.left_after = process.ended
        elif process.ended < LAST_STEP:
            self.later(self.any(self.step_seconds), lambda: self.enter(process))

    def any(self, seconds: float) -> float:
        return self.chance.choice([0.0, seconds / 10, seconds, seconds * self.chance.random()])

    # The agents.

    def ask(self, rank: int, tier: KeptIn) -> None:
        if rank not in self.silent | self.gone:
            self.to_chair(rank, self.voters[rank].ask(tier, self.now))

    def to_chair(self, rank: int, messages: list[Message]) -> None:
        for message in messages:
            self.send((rank, 0), lambda m=message: self.chair_gets(rank, m))

    def from_chair(self, sent: Sent) -> None:
        for rank, message in sent:
            self.send((0, rank + self.agents), lambda r=rank, m=message: self.voter_gets(r, m))

    def send(self, line: tuple[int, int], act: Callable[[], None]) -> None:
        """In the order of sending on each line, after any time."""
        at = max(self.line.get(line, 0.0), self.now + self.any(self.delay_seconds))
        self.line[line] = at
        heapq.heappush(self.queue, (at, next(self.count), act))  # by `later`, rounding could change the order

    def chair_gets(self, rank: int, message: Message) -> None:
        if not {0, rank} & self.gone:
            self.from_chair(self.chair.receive(rank, message, self.now))

    def chair_loses(self, rank: int) -> None:
        if 0 not in self.gone:
            self.from_chair(self.chair.lose(rank))

    def voter_gets(self, rank: int, message: Message) -> None:
        if rank in self.silent | self.gone:
            return
        voter = self.voters[rank]
        able = rank not in self.mute and all(not p.dead for p in self.processes[rank])
        self.to_chair(rank, voter.receive(message, self.now, can_take_part=able))
        self.tell(rank)
        if voter.stage is Stage.HELD:
            self.later(SETTLE_SECONDS, lambda: self.read(rank))

    def read(self, rank: int) -> None:
        if self.voters[rank].stage is Stage.HELD and rank not in self.gone:
            self.to_chair(
                rank, self.voters[rank].answer([p.ended for p in self.processes[rank]], KeptIn.MEMORY)
            )

    def tell(self, rank: int) -> None:
        for process in self.processes[rank]:
            process.order = self.voters[rank].order

    def deadlines(self) -> None:
        if 0 not in self.gone | self.silent:
            self.from_chair(self.chair.look(self.now))
        for rank, voter in enumerate(self.voters):
            if rank not in self.silent | self.gone:
                voter.look(self.now)
                self.tell(rank)

        for rank, local in enumerate(self.processes):
            if rank not in self.silent | self.gone | self.left and all(p.left_after for p in local):
                self.leave(rank)

    def leave(self, rank: int) -> None:
        """Its processes have left as it was agreed: so it says, and closes its connections."""
        self.left.add(rank)
        if rank:
            self.to_chair(rank, self.voters[rank].leave())
            self.send((rank, 0), lambda: rank in self.gone or self.chair_loses(rank))
        else:
            self.from_chair(self.chair.receive(0, *self.voters[0].leave(), self.now))
            self.gone.add(0)
            self.hang_up()

    def hang_up(self) -> None:
        """The chair's connections break, behind its last message."""
        for other in range(1, self.agents):
            self.send(
                (0, other + self.agents),
                lambda r=other: (
                    r in self.silent | self.left or (self.voters[r].lose_chair(self.now), self.tell(r))
                ),
            )

    # What goes wrong.

    def kill_process(self, rank: int) -> None:
        """Its agent sees it a little later."""
        self.processes[rank][0].dead = True
        self.later(
            self.any(self.delay_seconds), lambda: self.to_chair(rank, self.voters[rank].lose_process())
        )

    def kill_agent(self, rank: int) -> None:
        """With its processes; the others see the connection break behind its last message."""
        self.gone.add(rank)
        for process in self.processes[rank]:
            process.dead = True
        if rank:
            self.send((rank, 0), lambda: self.chair_loses(rank))
            return
        self.hang_up()


plays = st.builds(
    Play,
    chance=st.randoms(use_true_random=False),
    agents=st.integers(1, 5),
    local=st.integers(1, 2),
    step_seconds=st.sampled_from([0.0005, 0.01, 0.3]),
    delay_seconds=st.sampled_from([0.0002, 0.02, 0.5]),
    lockstep=st.booleans(),
)
moments = st.floats(0, 0.3)
tiers = st.sampled_from(list(KeptIn))


@settings(max_examples=200, deadline=None)
@given(plays, st.lists(st.tuples(moments, st.integers(0, 4), tiers), min_size=1, max_size=4))
def test_all_leave_after_the_same_step_and_nobody_goes_beyond(
    play: Play, asks: list[tuple[float, int, KeptIn]]
) -> None:
    for moment, rank, tier in asks:
        play.later(moment, lambda r=rank % play.agents, t=tier: play.ask(r, t))
    play.run(play.now + 0.3 + 4 * play.delay_seconds + 2 * SETTLE_SECONDS)
    assert all(voter.stage is Stage.AGREED for voter in play.voters)
    play.run(play.now + 60 * play.step_seconds + LAST_STEP * play.step_seconds * (not play.lockstep))
    agreed = {voter.agreed for voter in play.voters}
    assert len(agreed) == 1
    (step,) = {a.step for a in agreed if a}
    if step > LAST_STEP:
        return  # training ended before
    assert {p.left_after for p in play.everybody()} == {step}
    assert len({p.tier for p in play.everybody()}) == 1
    play.run(play.now + 4 * play.delay_seconds)
    assert all(voter.lost_at is None for voter in play.voters), "who has left is not lost"


@settings(max_examples=200, deadline=None)
@given(
    plays,
    st.lists(st.tuples(moments, st.integers(0, 4), tiers), min_size=1, max_size=4),
    st.lists(st.tuples(moments, st.integers(0, 4), st.booleans()), max_size=2),
    st.sets(st.integers(0, 4), max_size=1),
    st.sets(st.integers(0, 4), max_size=1),
)
def test_whatever_fails_nobody_passes_the_agreed_step_and_nobody_is_held_for_ever(
    play: Play,
    asks: list[tuple[float, int, KeptIn]],
    deaths: list[tuple[float, int, bool]],
    silent: set[int],
    mute: set[int],
) -> None:
    play.silent, play.mute = frozenset(silent), frozenset(mute)
    for moment, rank, tier in asks:
        play.later(moment, lambda r=rank % play.agents, t=tier: play.ask(r, t))
    for moment, rank, whole in deaths:
        strike = play.kill_agent if whole else play.kill_process
        play.later(moment, lambda r=rank % play.agents, s=strike: s(r))
    play.run(play.now + 0.3 + HOLD_SECONDS + SLACK_SECONDS + 4 * play.delay_seconds)

    agreed = {voter.agreed for voter in play.voters if voter.agreed}
    assert len(agreed) <= 1
    for process in play.everybody():
        assert not leaving.is_held(process.order, play.now + SLACK_SECONDS), "held without an end"
        assert process.left_after is None or process.left_after == next(iter(agreed)).step
        if agreed and process.left_after is None and not deaths:
            assert process.ended <= next(iter(agreed)).step
    if not deaths:
        assert all(voter.lost_at is None for voter in play.voters)
    for a in agreed:
        if play.lockstep:  # whoever was not told is stopped by those who wait for nobody
            assert all(p.ended <= a.step for p in play.everybody())


@pytest.mark.parametrize("killed", [0, 1, 2])
def test_who_is_killed_before_its_processes_have_left_is_known_to_all_others(killed: int) -> None:
    play = Play(random.Random(3), 3, 1, 0.5, 0.001, lockstep=True)
    play.later(0.05, lambda: play.ask(1, KeptIn.STORAGE))
    play.run(play.now + 0.1)
    assert {v.stage for v in play.voters} == {Stage.AGREED}
    play.kill_agent(killed)
    play.run(play.now + 0.1)
    lost = [voter.lost_at for rank, voter in enumerate(play.voters) if rank != killed]
    assert all(at is not None and at <= play.now for at in lost)


def test_an_agent_that_never_answers_costs_the_time_to_decide_and_no_step() -> None:
    play = Play(random.Random(1), 3, 1, 0.01, 0.001, lockstep=True, silent=frozenset({2}))
    play.later(0.05, lambda: play.ask(1, KeptIn.MEMORY))
    play.run(play.now + 0.5)
    held_at = play.processes[1][0].ended
    play.run(play.now + DECISION_SECONDS - 1)
    assert play.processes[1][0].ended == held_at
    play.run(play.now + 1)
    assert play.processes[1][0].ended > held_at
    assert {v.stage for v in play.voters} == {Stage.NONE}


@pytest.mark.parametrize("mute", [0, 1, 2])
def test_processes_that_take_no_part_call_the_vote_off_at_once(mute: int) -> None:
    play = Play(random.Random(2), 3, 1, 0.01, 0.001, lockstep=True, mute=frozenset({mute}))
    play.later(0.05, lambda: play.ask(1, KeptIn.MEMORY))
    play.run(play.now + 0.1)
    assert {v.stage for v in play.voters} == {Stage.NONE}


def test_no_vote_is_opened_before_all_agents_are_there() -> None:
    chair = Chair(2)
    chair.join(0)
    assert chair.receive(0, Message(Kind.ASK, tier=KeptIn.MEMORY), 0.0) == [(0, Message(Kind.OFF, 1))]


def test_the_safer_tier_counts_until_the_vote_is_decided() -> None:
    chair = Chair(2)
    chair.join(0)
    chair.join(1)
    chair.receive(0, Message(Kind.ASK, tier=KeptIn.MEMORY), 0.0)
    chair.receive(1, Message(Kind.ASK, tier=KeptIn.STORAGE), 0.0)
    chair.receive(0, Message(Kind.ENDED, 1, 6, KeptIn.MEMORY), 0.0)
    decided = chair.receive(1, Message(Kind.ENDED, 1, 7, KeptIn.MEMORY), 0.0)
    assert decided == [(rank, Message(Kind.LEAVE, 1, 8, KeptIn.STORAGE)) for rank in (0, 1)]
    assert chair.receive(1, Message(Kind.ASK, tier=KeptIn.STORAGE), 0.0) == []


def test_where_one_rank_has_no_memory_all_leave_for_storage() -> None:
    chair = Chair(2)
    chair.join(0)
    chair.join(1)
    chair.receive(0, Message(Kind.ASK, tier=KeptIn.MEMORY), 0.0)
    chair.receive(1, Message(Kind.ENDED, 1, 6, KeptIn.STORAGE), 0.0)
    decided = chair.receive(0, Message(Kind.ENDED, 1, 6, KeptIn.MEMORY), 0.0)
    assert decided == [(rank, Message(Kind.LEAVE, 1, 7, KeptIn.STORAGE)) for rank in (0, 1)]


def test_a_process_that_has_ended_no_step_leaves_after_the_first() -> None:
    assert leave_at(0, KeptIn.MEMORY) > GO_ON
    assert leaving.tier_to_leave(leave_at(0, KeptIn.MEMORY), 0) == "memory"
    assert leaving.tier_to_leave(leave_at(120, KeptIn.STORAGE), 119) is None
    assert leaving.tier_to_leave(leave_at(120, KeptIn.STORAGE), 130) == "storage"
