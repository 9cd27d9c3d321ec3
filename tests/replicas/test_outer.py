"""Groups that average every so many steps, against a replay in one process."""

from __future__ import annotations

import json
import random
from collections import defaultdict
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor, nn

from dlr.replicas import join
from dlr.replicas.agreement import Agreement, Member, agree_on_round
from tests.replicas import rounds
from tests.replicas.fleet import Fleet
from tests.replicas.scripts import WIDTH, digest_of, exact_step
from tests.replicas.test_training import WITHIN_SECONDS, run

pytestmark = pytest.mark.real

members = st.builds(
    Member,
    trained=st.just(True),
    applied=st.integers(0, 3),
    applied_in=st.integers(0, 3),
    complete_in=st.integers(0, 3),
    is_ready=st.booleans(),
    inner_steps=st.integers(0, 2),
) | st.builds(Member)


@given(st.lists(members, min_size=1, max_size=6))
def test_those_with_their_inner_steps_made_average_and_the_others_take_over_their_state(
    met: list[Member],
) -> None:
    agreed = agree_on_round(met)
    counted = agreed.contributors(agreed.step, len(met))
    furthest = max((each.trained, each.applied, each.applied_in) for each in met)
    level = {
        place: each
        for place, each in enumerate(met)
        if (each.trained, each.applied, each.applied_in) == furthest
    }
    most = max((each.inner_steps for each in level.values() if each.is_ready), default=-1)
    ready = [place for place, each in level.items() if each.is_ready and each.inner_steps == most]
    if ready:
        assert list(counted) == ready
        assert agreed.leader in ready
        assert agreed.behind == set(range(len(met))) - set(ready)
    else:
        assert len(counted) == len(met), "all make the next round"
        assert agreed.leader not in agreed.behind | agreed.rolls
        going_on = set(range(len(met))) - agreed.behind
        assert {met[place].inner_steps for place in going_on} == {met[agreed.leader].inner_steps}
    assert agreed.contributors(agreed.step + 1, len(met)) == tuple(range(len(met)))


# --- rounds in virtual time -------------------------------------------------------------------------------


@dataclass
class Group:
    """One group: its member, and the history of its state."""

    member: Member = field(default_factory=Member)
    history: tuple[tuple[int, tuple[int, ...]], ...] = ()
    """Outer steps, with the contributors of each."""
    rounds: int = 0
    """Number of rounds whose inner steps its schedulers and samplers have made."""
    pending: tuple[int, ...] = ()
    """Contributors whose differences are complete here, if any."""
    is_between: bool = True
    """Whether it meets others next, and makes no inner steps before."""


class World:
    """Groups that train by rounds, meet, average, vote and die in any order. Anything between them gets lost."""

    def __init__(self, chance: random.Random, count: int, *, dies: bool) -> None:
        self.chance = chance
        self.dies = dies
        self.version = 0
        self.groups = {index: Group() for index in range(count)}

    def happens(self) -> bool:
        return self.chance.random() < 0.75

    def make_inner_steps(self, group: Group) -> None:
        if not group.is_between:
            assert group.rounds == group.member.applied or self.dies, "no round is missing or made twice"
            group.rounds += 1
            group.member = replace(group.member, is_ready=True)
            group.is_between = True

    def one_version(self) -> None:
        """A version from its meeting to what ends it."""
        self.version += 1
        here = {index: group for index, group in self.groups.items() if self.happens() or not self.dies}
        has_state = any(group.member.trained for group in here.values())
        if not here or (not has_state and len(here) < len(self.groups)):
            return
        for group in here.values():
            self.make_inner_steps(group)
        members = [replace(group.member, inner_steps=group.rounds) for group in here.values()]
        agreed = agree_on_round(members)
        for place, group in enumerate(here.values()):
            if place in agreed.rolls:
                self.commit(group, agreed.applied_in)
        met = self.heal(here, agreed)
        if agreed.healing_steps == 0:
            for place, group in enumerate(here.values()):
                group.is_between = not met[place]
                if all(met):
                    self.make_inner_steps(group)
        step = agreed.step
        while all(met) and self.outer_step(here, agreed, step):
            for group in here.values():
                self.make_inner_steps(group)
            step += 1

    def heal(self, here: dict[int, Group], agreed: Agreement) -> list[bool]:
        """Take over the leader's state; return who goes on, by place."""
        leader = list(here.values())[agreed.leader]
        state = leader.history, leader.rounds
        met = [place not in agreed.behind or self.happens() for place in range(len(here))]
        for place, group in enumerate(here.values()):
            if place in agreed.behind and met[place]:
                group.history, group.rounds = state
            if (place in agreed.behind and met[place]) or (group is leader and not group.member.trained):
                group.member = Member(True, agreed.step, agreed.applied_in)
        return met

    def outer_step(self, here: dict[int, Group], agreed: Agreement, step: int) -> bool:
        counted = agreed.contributors(step, len(here))
        indices = tuple(index for place, index in enumerate(here) if place in counted)
        assert {group.member.applied for group in here.values()} == {step}
        assert len({group.rounds for group in here.values()}) == 1, "all have the same inner steps"
        for place, group in enumerate(here.values()):
            assert group.member.is_ready == (place in counted), "whose differences count has some"
            whole = self.happens()
            group.pending = indices if whole else ()
            group.member = replace(group.member, complete_in=self.version if whole else 0)
        if not all(group.pending for group in here.values()):
            return False
        learned = [group for group in here.values() if self.happens()]
        for group in learned:
            self.commit(group, self.version)
            group.is_between = False
        return len(learned) == len(here)

    def commit(self, group: Group, version: int) -> None:
        step = group.member.applied
        group.history += ((step, group.pending),)
        group.member = Member(True, step + 1, version)

    def die(self) -> None:
        """Some groups die, and one at least that has the state lives."""
        for index in self.groups if self.dies else ():
            others = [each for other, each in self.groups.items() if other != index and each.member.trained]
            if others and self.chance.random() < 0.2:
                self.groups[index] = Group()


@pytest.mark.parametrize("dies", [True, False])
@pytest.mark.parametrize("count", [1, 2, 3, 5])
def test_groups_of_one_outer_step_have_one_history_and_no_round_is_missing_or_made_twice(
    count: int, dies: bool
) -> None:
    furthest = 0
    for seed in range(500):
        world = World(random.Random(seed * 10 + count), count, dies=dies)
        for _ in range(8):
            world.one_version()
            level: dict[tuple[int, int], set[object]] = {}
            for group in world.groups.values():
                if group.member.trained:
                    assert [step for step, _ in group.history] == list(range(group.member.applied))
                    key = (group.member.applied, group.member.applied_in)
                    level.setdefault(key, set()).add(group.history)
                    furthest = max(furthest, group.member.applied)
            assert all(len(histories) == 1 for histories in level.values()), (seed, level)
            world.die()
    assert furthest > 3


# --- real processes ---------------------------------------------------------------------------------------


def lines_of(folder: Path) -> list[dict[str, Any]]:
    texts = [text for path in sorted(folder.glob("log-*")) for text in path.read_text().splitlines()]
    return [json.loads(text) for text in texts if text.endswith("}")]


def check_against_replay(lines: list[dict[str, Any]], steps: int, sync_every: int) -> dict[int, list[int]]:
    """Compare what the groups wrote with the scheme in one process; return the groups of each outer step."""
    digests: dict[int, set[str]] = defaultdict(set)
    trained: dict[int, set[int]] = defaultdict(set)
    groups_of: dict[int, list[int]] = {}
    ends: dict[int, dict[tuple[int, int], set[str]]] = defaultdict(lambda: defaultdict(set))
    for line in lines:
        if "end" in line:
            ends[line["end"]][line["group"], line["round"]].add(line["digest"])
            continue
        number = line["begin"]
        digests[number].add(line["digest"])
        trained[number].add(line["group"])
        assert line["step"] == min(number * sync_every, steps)
        if number > 0:
            assert groups_of.setdefault(number - 1, line["groups"]) == line["groups"]
    count = -(-steps // sync_every)
    assert sorted(digests) == list(range(count + 1)), "no round is missing"
    assert all(len(each) == 1 for each in digests.values()), "all groups begin a round with the same"
    for of_round in ends.values():
        assert all(len(each) == 1 for each in of_round.values()), "the ranks of a group have the same"
        assert len(set.union(*of_round.values())) == len(of_round), "groups differ within a round"
    sources = {
        (line["begin"], line["group"]): line["source"] for line in lines if line.get("source") is not None
    }
    (first,) = {source for (number, _), source in sources.items() if number == 0}
    replayed = rounds.replay(
        steps,
        sync_every,
        seed=first * 100 + first + 1,
        groups_of=groups_of,
        trained={number: sorted(each) for number, each in trained.items()},
        sources=sources,
    )
    assert [digests[number].pop() for number in range(count + 1)] == replayed
    return groups_of


@pytest.mark.parametrize(("groups", "size", "kills"), [(3, 1, 3), (2, 2, 1)])
def test_groups_that_are_killed_in_their_rounds_follow_the_paper_bit_by_bit(
    groups: int, size: int, kills: int, tmp_path: Path
) -> None:
    fleet = Fleet(tmp_path, rounds.train, groups, size, minimum=2, steps=None, sync_every=5)
    run(fleet, kills, seed=groups)
    lines = lines_of(tmp_path)
    groups_of = check_against_replay(lines, max(line.get("step", 0) for line in lines), 5)
    assert len(fleet.kills) == kills
    if groups > 2:
        assert {len(each) for each in groups_of.values()} >= {2, 3}, "others went on, and it came back"


@pytest.mark.parametrize(
    "faults",
    [
        {2: ("before the vote", 4)},
        {2: ("after the vote", 4)},
        {1: ("misses the vote", 4)},
        {1: ("misses the vote", 4), 2: ("once the first has it", 4)},
    ],
    ids=["dies before the vote", "dies after it", "misses it", "one misses it, one dies"],
)
def test_no_outer_step_is_lost_or_made_twice_by_what_fails_in_it(
    faults: dict[int, tuple[str, int]], tmp_path: Path
) -> None:
    fleet = Fleet(tmp_path, rounds.train, 3, minimum=2, steps=80, sync_every=5, faults=faults)
    fleet._minimum = 3  # training begins with all; it goes on with two
    try:
        fleet.run_until(lambda: fleet.version > 0, WITHIN_SECONDS)
        fleet._minimum = 2
        if 1 in faults:
            fleet._wanted = {0, 1}  # none begins a version in the rounds that are looked at
        fleet.run_until(lambda: fleet.is_over, WITHIN_SECONDS)
    finally:
        fleet.stop()
    lines = lines_of(tmp_path)
    groups_of = check_against_replay(lines, 80, 5)
    if 1 in faults:
        assert fleet.version > 1
        assert groups_of[4] == [0, 1, 2], "the one that missed it has it too"
        assert 1 not in groups_of[5], "and it did not keep the others waiting for a round"
        assert 1 in groups_of[6]


@pytest.mark.parametrize("kind", ["ddp", "fsdp2"])
def test_rounds_with_ddp_and_fsdp2_within_the_group(kind: str, tmp_path: Path) -> None:
    fleet = Fleet(tmp_path, rounds.train_kind, 2, 2, minimum=1, kind=kind, sync_every=5)
    run(fleet, 1, seed=1)
    by_rank: dict[tuple[int, int], dict[tuple[int, int], str]] = defaultdict(dict)
    for line in fleet.lines():
        by_rank[line["step"], line["rank"]][line["group"], line["round"]] = line["digest"]
    assert len({(line["group"], line["round"]) for line in fleet.lines()}) == 3, "it came back and trained"
    both = 0
    for (step, _), each in by_rank.items():
        if len(each) == 2:
            both += 1
            assert len(set(each.values())) == (1 if step % 5 == 0 else 2)
    assert both > 50


def test_rounds_of_one_step_with_plain_sgd_average_the_parameters(tmp_path: Path) -> None:
    outer = partial(torch.optim.SGD, lr=1.0)
    fleet = Fleet(
        tmp_path, rounds.train, 2, minimum=2, steps=20, sync_every=1, outer=outer, momentum=0.0, seconds=0.0
    )
    try:
        fleet.run_until(lambda: fleet.is_over, WITHIN_SECONDS)
    finally:
        fleet.stop()
    lines = [line for line in lines_of(tmp_path) if "begin" in line]
    (first,) = {line["source"] for line in lines if line["source"] is not None}
    model = rounds.grid_model(first * 100 + first + 1)
    parameters = list(model.parameters())
    averaged = [rounds.digest(model)]
    for step in range(20):
        before = [parameter.detach().clone() for parameter in parameters]
        after: list[list[Tensor]] = []
        for group in range(2):
            rounds.fill(model, before)
            optimizer = rounds.GridSGD(parameters, lr=0.25 * rounds.rate(step))
            optimizer.zero_grad()
            exact_step(model, step, group)
            optimizer.step()
            after.append([parameter.detach().clone() for parameter in parameters])
        rounds.fill(model, [(one + other) / 2 for one, other in zip(*after, strict=True)])
        averaged.append(rounds.digest(model))
    for line in lines:
        assert line["digest"] == averaged[line["begin"]], line


def test_a_group_alone_makes_outer_steps_and_leaves_no_gradients() -> None:
    model = nn.Linear(4, 4)
    start = [parameter.detach().clone() for parameter in model.parameters()]
    optimizer = torch.optim.SGD(model.parameters(), lr=0.5)
    joined = join(model, optimizer, sync_every=3, outer=partial(torch.optim.SGD, lr=0.5), start=7)
    seen = []
    for step in joined.steps(11):
        seen.append((step, joined.applied))
        if step == 9:
            half = [parameter.detach().clone() for parameter in model.parameters()]
            assert all(parameter.grad is None for parameter in model.parameters())
        optimizer.zero_grad()
        sum(parameter.sum() for parameter in model.parameters()).backward()  # type: ignore[union-attr]
        joined.average()  # has no effect: the gradients are this group's
        optimizer.step()
    assert seen == [(7, 2), (8, 2), (9, 3), (10, 3)]
    assert joined.applied == 4, "the last round is shorter"
    for before, after in zip(start, half, strict=True):
        torch.testing.assert_close(before - after, torch.full_like(before, 0.5))  # half of 2 steps by 0.5
    assert digest_of(half) != digest_of(list(model.parameters()))


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        ({"sync_every": 5}, "sync_every and outer belong together"),
        ({"outer": partial(torch.optim.SGD, lr=1.0)}, "sync_every and outer belong together"),
        ({"sync_every": 0, "outer": partial(torch.optim.SGD, lr=1.0)}, "sync_every is 0, and has to be 1"),
        (
            {"sync_every": 2, "outer": lambda parameters: torch.optim.SGD(parameters[:1], lr=1.0)},
            "the outer optimizer lacks parameters",
        ),
    ],
)
def test_bad_arguments_are_refused_with_a_sentence(arguments: dict[str, Any], sentence: str) -> None:
    model = nn.Linear(WIDTH, WIDTH)
    with pytest.raises(ValueError, match=sentence):
        join(model, torch.optim.SGD(model.parameters(), lr=0.1), **arguments)
