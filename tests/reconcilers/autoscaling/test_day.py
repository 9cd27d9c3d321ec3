"""Growth in virtual time, in a cluster whose other load comes and goes: free room is found, and nobody flaps.

One node takes one worker, or one Pod of others. Others come first: where they find no node, they take that of an
extra worker. A Pod has its node a second after it is made, if there is one, and is ready some seconds later.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import dataclass, field
from datetime import timedelta

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from crds.job_spec import Opportunistic
from crds.job_status import GrowthStatus
from reconcilers.autoscaling.opportunity import Room, next_step
from tests.reconcilers.build import NOW

HOUR = 3_600
POLICY = Opportunistic(priority_class_name="idle")
PLACED_SECONDS = 1
READY_SECONDS = 20
PAUSE_SECONDS = 10
"""Of a restart: nobody trains."""


@dataclass(eq=False)
class Extra:
    made: int
    placed: int | None = None
    trains: bool = False
    taken: bool = False
    trained_seconds: int = 0

    @property
    def holds(self) -> bool:
        """Whether it has a node."""
        return self.placed is not None and not self.taken


@dataclass
class Day:
    """One job on `base` nodes of its own, and `nodes` that it shares with others."""

    base: int
    nodes: int
    policy: Opportunistic = POLICY
    now: int = 0
    load: int = 0
    """Nodes that others have."""
    extra: list[Extra] = field(default_factory=list)
    formed: int = 0
    asked: int = 0
    restarts: int = 0
    growths: list[tuple[int, list[Extra]]] = field(default_factory=list)
    """Of each restart for newcomers: how many workers paused for them, and who they are."""
    free_seconds: int = 0
    used_seconds: int = 0

    def __post_init__(self) -> None:
        self.known = GrowthStatus(base=self.base, replicas=self.base)
        self.world = self.base
        self._members: list[Extra] = []
        """The extra workers of the world."""

    @property
    def count(self) -> int:
        return self.base + len(self.extra)

    @property
    def useless(self) -> int:
        """Growths whose newcomers, in all their time, trained for no longer than the others paused."""
        return sum(
            sum(each.trained_seconds for each in newcomers) <= PAUSE_SECONDS * paused
            for paused, newcomers in self.growths
        )

    def live(self, seconds: int, load_at: Callable[[int], int]) -> None:
        for _ in range(seconds):
            self.load = min(load_at(self.now), self.nodes)
            self._preempt()
            self._place()
            self._decide()
            self._form()
            if self.now - self.formed >= PAUSE_SECONDS:
                for each in self._members:
                    each.trained_seconds += 1
            self.free_seconds += self.nodes - self.load
            self.used_seconds += sum(each.holds for each in self.extra)
            self.now += 1

    def _preempt(self) -> None:
        for each in [each for each in self.extra if each.holds][self.nodes - self.load :]:
            each.taken = True

    def _place(self) -> None:
        for each in self.extra:
            held = sum(other.holds for other in self.extra)
            due = each.placed is None and self.now - each.made >= PLACED_SECONDS
            if due and held < self.nodes - self.load:
                each.placed = self.now

    def _decide(self) -> None:
        room = self.room()
        step = next_step(self.policy, self.known, room, NOW + timedelta(seconds=self.now))
        self.known = step.known
        assert self.base <= step.count <= room.most and (step.count - self.base) % room.unit == 0
        if step.count == self.count:
            return
        if step.count > self.count:
            self.extra += [Extra(self.now) for _ in range(step.count - self.count)]
        else:
            order = sorted(self.extra, key=lambda e: (not e.taken, e.placed is not None, e.trains))
            for each in order[: self.count - step.count]:
                self.extra.remove(each)
        self.asked = self.now

    def _form(self) -> None:
        """At once without who is gone; with newcomers when none is still on its way to be ready."""
        lasting = [each for each in self.extra if each.trains and each.holds]
        ready = [each for each in self.extra if each.holds and self.now - (each.placed or 0) >= READY_SECONDS]
        members = ready if all(each in ready for each in self.extra if each.holds) else lasting
        if members == self._members:
            return
        newcomers = [each for each in members if not each.trains]
        if lasting == self._members:  # else it had to restart without them, too
            self.growths.append((self.world, newcomers))
        for each in newcomers:
            each.trains = True
        self._members, self.world = members, self.base + len(members)
        self.formed, self.restarts = self.now, self.restarts + 1

    def room(self) -> Room:
        alive = [each for each in self.extra if not each.taken]
        unplaced = [each for each in alive if each.placed is None]
        stuck = sum(self.now - each.made >= PLACED_SECONDS for each in unplaced)
        trained = self.now - self.formed
        return Room(
            count=self.count,
            most=self.base + self.nodes,
            unit=1,
            requested_seconds=float(self.now - self.asked),
            is_steady=trained >= PAUSE_SECONDS and self.world == self.count,
            stuck=stuck,
            lost=len(self.extra) - len(alive),
            on_their_way=len(unplaced) - stuck,
            starting=sum(each.holds and not each.trains for each in alive),
            world=self.world,
            trained_seconds=float(trained) if self.world > self.base else 0.0,
            is_measured=trained >= 2 * PAUSE_SECONDS,
            efficiency=1.0,
            restart_seconds=float(PAUSE_SECONDS),
        )


def random_load(seed: int, nodes: int, mean_seconds: float) -> Callable[[int], int]:
    """Jobs of others, of some nodes each, that come and go as they like."""
    chance = random.Random(seed)
    ends: list[tuple[float, int]] = []
    comes = [chance.expovariate(1 / mean_seconds)]

    def at(second: int) -> int:
        ends[:] = [(end, size) for end, size in ends if end > second]
        while comes[0] <= second:
            ends.append((second + chance.expovariate(1 / (3 * mean_seconds)), chance.randint(1, nodes // 2)))
            comes[0] += chance.expovariate(1 / mean_seconds)
        return min(sum(size for _, size in ends), nodes)

    return at


@pytest.mark.parametrize(("minutes", "seed"), [(15, 0), (5, 1)])
def test_in_a_day_of_random_load_free_nodes_are_used_and_few_restarts_are_useless(
    minutes: int, seed: int
) -> None:
    """benchmarks/results/features.md has the figures of more days."""
    day = Day(base=8, nodes=8)
    day.live(24 * HOUR, random_load(seed, 8, 60 * minutes))
    used, useless = day.used_seconds / day.free_seconds, day.useless
    print(f"every {minutes} min: {used:.1%} used, {day.restarts} restarts, {useless} useless")
    assert day.free_seconds > 24 * HOUR
    assert used >= 0.95
    assert useless <= 24


def test_load_that_takes_every_node_back_at_once_costs_ever_fewer_restarts() -> None:
    """Somebody takes all as soon as the world has grown, for hours; once that is over, it has the room."""
    day = Day(base=8, nodes=4)
    day.live(2 * HOUR, lambda _: 4 if day.world > 8 else 0)
    assert day.useless <= 7
    day.live(4 * HOUR, lambda _: 4 if day.world > 8 else 0)
    assert day.useless <= 7 + 4, "one an hour"
    assert day.restarts == 2 * day.useless
    day.live(2 * HOUR, lambda _: 0)
    assert day.world == 8 + 4


@given(freed=st.integers(30, 900), probe=st.integers(2, 120))
@settings(max_examples=8, deadline=None)
def test_nodes_that_are_freed_are_had_within_half_a_probe(freed: int, probe: int) -> None:
    day = Day(base=4, nodes=4, policy=POLICY.model_copy(update={"probe_seconds": probe}))
    day.live(60 + freed, lambda _: 4)
    before = day.now
    while sum(each.placed is not None for each in day.extra) < 4:
        day.live(1, lambda _: 0)
        assert day.now - before <= probe / 2 + 10
    day.live(READY_SECONDS + 1, lambda _: 0)
    assert (day.world, day.restarts) == (8, 1), "one restart for all of them"


@given(st.data())
@settings(max_examples=8, deadline=None)
def test_whatever_the_load_is_bounds_hold_and_quiet_ends_with_all_the_room(data: st.DataObject) -> None:
    nodes = data.draw(st.integers(1, 6))
    policy = POLICY.model_copy(update={"probe_seconds": data.draw(st.integers(1, 90))})
    changes = data.draw(st.lists(st.tuples(st.integers(1, 300), st.integers(0, nodes)), max_size=8))
    day = Day(base=data.draw(st.integers(1, 8)), nodes=nodes, policy=policy)
    for seconds, load in changes:
        day.live(seconds, lambda _, load=load: load)  # type: ignore[misc]
    day.live(2 * HOUR, lambda _: 0)
    assert day.world == day.count == day.base + nodes
