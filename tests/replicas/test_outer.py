"""Groups that average every so many steps, against a replay in one process."""

from __future__ import annotations

import json
from collections import defaultdict
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor, nn

from dlr.replicas import join
from dlr.replicas.agreement import Member, agree_on_round
from tests.replicas import rounds
from tests.replicas.fleet import Fleet
from tests.replicas.scripts import WIDTH, digest_of, exact_step
from tests.replicas.test_training import WITHIN_SECONDS, run

pytestmark = [pytest.mark.timeout(240)]

members = st.builds(
    Member,
    trained=st.just(True),
    applied=st.integers(0, 3),
    applied_in=st.integers(0, 3),
    complete_in=st.integers(0, 3),
    is_ready=st.booleans(),
) | st.builds(Member)


@given(st.lists(members, min_size=1, max_size=6))
def test_those_with_their_inner_steps_made_average_and_the_others_take_over_their_state(
    met: list[Member],
) -> None:
    agreed = agree_on_round(met)
    counted = agreed.contributors(agreed.step, len(met))
    furthest = max((each.trained, each.applied, each.applied_in) for each in met)
    ready = [
        place
        for place, each in enumerate(met)
        if each.is_ready and (each.trained, each.applied, each.applied_in) == furthest
    ]
    if ready:
        assert list(counted) == ready
        assert agreed.leader in ready
        assert agreed.behind == set(range(len(met))) - set(ready)
    else:
        assert len(counted) == len(met), "all make the next round"
        assert agreed.leader not in agreed.behind | agreed.rolls
    assert agreed.contributors(agreed.step + 1, len(met)) == tuple(range(len(met)))


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


@pytest.mark.parametrize(("groups", "size", "kills", "steps"), [(3, 1, 3, 603), (2, 2, 1, 400)])
def test_groups_that_are_killed_in_their_rounds_follow_the_paper_bit_by_bit(
    groups: int, size: int, kills: int, steps: int, tmp_path: Path
) -> None:
    fleet = Fleet(tmp_path, rounds.train, groups, size, minimum=2, steps=steps, sync_every=5)
    run(fleet, kills, seed=groups)
    groups_of = check_against_replay(lines_of(tmp_path), steps, 5)
    assert fleet.kills
    if groups > 2:
        assert {len(each) for each in groups_of.values()} >= {2, 3}, "others went on, and it came back"


@pytest.mark.parametrize(
    "faults",
    [
        {2: ("before the vote", 4)},
        {2: ("after the vote", 4)},
        {1: ("misses the vote", 4)},
        {1: ("misses the vote", 4), 2: ("after the vote", 4)},
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
    fleet = Fleet(tmp_path, rounds.train_kind, 2, 2, minimum=1, kind=kind, steps=400, sync_every=5)
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
    joined = join(model, optimizer, sync_every=3, outer=partial(torch.optim.SGD, lr=0.5), start=6)
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
    assert seen == [(6, 2), (7, 2), (8, 2), (9, 3), (10, 3)]
    assert joined.applied == 4, "the last round is shorter"
    for before, after in zip(start, half, strict=True):
        torch.testing.assert_close(before - after, torch.full_like(before, 0.75))  # half of 3 steps by 0.5
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
