"""What members agree upon at a meeting, and that no step is lost or made twice through any deaths."""

from __future__ import annotations

import random
from dataclasses import dataclass, replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dlr.replicas.agreement import Member, agree

members = st.builds(
    Member,
    trained=st.booleans(),
    applied=st.integers(0, 5),
    applied_in=st.integers(0, 4),
    complete_in=st.integers(0, 4),
    has_loaded=st.booleans(),
)


@given(st.lists(members, min_size=1, max_size=6))
def test_each_member_leads_is_level_rolls_or_is_behind(met: list[Member]) -> None:
    agreed = agree(met)
    assert agreed.leader not in agreed.rolls | agreed.behind
    assert not agreed.rolls & agreed.behind
    led = met[agreed.leader]
    for place, member in enumerate(met):
        if place in agreed.rolls:
            assert member.applied + 1 == led.applied and member.complete_in == led.applied_in > 0
        elif place not in agreed.behind and place != agreed.leader:
            assert (member.trained, member.applied, member.applied_in) == (True, led.applied, led.applied_in)


@given(st.lists(members, min_size=1, max_size=6))
def test_who_has_trained_leads_those_who_have_not_and_the_furthest_leads_those(met: list[Member]) -> None:
    led = met[agree(met).leader]
    assert led.trained or not any(member.trained for member in met)
    assert all(led.applied >= member.applied for member in met if member.trained == led.trained)


@given(members)
def test_a_member_is_the_same_after_the_network(member: Member) -> None:
    assert Member.of_numbers(member.to_numbers()) == member


@given(st.lists(members, min_size=1, max_size=6), st.integers(0, 4))
def test_those_behind_contribute_to_no_step_until_they_have_the_state(met: list[Member], later: int) -> None:
    agreed = agree(met)
    counted = agreed.contributors(agreed.step + later, len(met))
    assert agreed.leader in counted
    if later < 2 and not agreed.is_first:
        assert not agreed.behind & set(counted)
    else:
        assert counted == tuple(range(len(met)))


# --- a whole training in virtual time ---------------------------------------------------------------------


@dataclass
class Group:
    """One group: where it is, and the history of its state, a step and its contributors each."""

    index: int
    member: Member
    history: tuple[tuple[int, tuple[int, ...]], ...] = ()
    pending: tuple[int, ...] = ()
    """Contributors whose gradients are complete here, if any."""


class World:
    """Groups that meet, average, vote and die in any order. What is told between them can get lost anywhere."""

    def __init__(self, chance: random.Random, count: int) -> None:
        self.chance = chance
        self.count = count
        self.version = 0
        self.groups = {index: Group(index, Member()) for index in range(count)}

    def run(self, versions: int) -> None:
        for _ in range(versions):
            self.one_version()

    def one_version(self) -> None:
        """A version from its meeting to what ends it."""
        self.version += 1
        here = [self.groups[index] for index in sorted(self.groups)]
        if any(group.member.trained for group in here):  # some are left out, of which others are enough
            here = [group for group in here if self.chance.random() < 0.8]
            if not any(group.member.trained for group in here):
                return
        agreed = agree([group.member for group in here])
        leader = here[agreed.leader]
        for place, group in enumerate(here):
            if place in agreed.rolls:
                step = group.member.applied
                group.history += ((step, group.pending),)
                group.member = Member(True, step + 1, agreed.applied_in)
        for place, group in enumerate(here):
            if place == agreed.leader:
                group.member = replace(group.member, trained=True)
            elif place in agreed.behind and agreed.is_first:
                group.member, group.history = replace(leader.member, trained=True), leader.history
            elif place in agreed.behind:
                group.member = Member(False, agreed.step)
        self._steps(here, agreed.behind if not agreed.is_first else frozenset(), agreed.step)
        self._die()

    def _steps(self, here: list[Group], behind: frozenset[int], first: int) -> None:
        """Steps until one is not committed by all."""
        for number in range(self.chance.randrange(1, 6)):
            step, heals = first + number, number < 2
            counted = tuple(g.index for place, g in enumerate(here) if not (heals and place in behind))
            at_step = [group for group in here if group.member.applied == step]
            if len(at_step) < len(here):
                break  # one of them rolls: it comes to this step later, as the others wait for it
            if number == 1:
                state = next(group.history for place, group in enumerate(here) if place not in behind)
                healed = [group for place, group in enumerate(here) if place in behind]
            else:
                state, healed = (), []
            whole = [self.chance.random() < 0.8 for _ in here]
            for group, has_all in zip(here, whole, strict=True):
                group.pending = counted if has_all else ()
                complete_in = self.version if has_all else 0
                group.member = replace(group.member, complete_in=complete_in)
            if not all(whole):
                break
            learned = [self.chance.random() < 0.8 for _ in here]
            for group, knows in zip(here, learned, strict=True):
                if not knows:
                    continue
                if group in healed:
                    group.history, group.member = state, Member(True, step)
                trained = group.member.trained
                group.history += ((step, counted),) if trained else ()
                group.member = Member(trained, step + 1, self.version if trained else 0)
            if not all(learned):
                break

    def _die(self) -> None:
        """Some processes die, of which one at least that has the state lives."""
        for index, group in list(self.groups.items()):
            others = [each for each in self.groups.values() if each.index != index and each.member.trained]
            if others and self.chance.random() < 0.3:
                self.groups[index] = Group(index, Member())
            assert [step for step, _ in group.history] == list(range(len(group.history)))


@pytest.mark.parametrize("count", [1, 2, 3, 5])
def test_groups_of_one_step_have_one_history_and_no_step_is_missing_or_made_twice(count: int) -> None:
    for seed in range(500):
        world = World(random.Random(seed * 10 + count), count)
        for _ in range(5):
            world.one_version()
            level: dict[tuple[int, int], set[object]] = {}
            for group in world.groups.values():
                if group.member.trained:
                    assert len(group.history) == group.member.applied
                    key = (group.member.applied, group.member.applied_in)
                    level.setdefault(key, set()).add(group.history)
            assert all(len(histories) == 1 for histories in level.values()), (seed, level)
