"""Groups that average every so many steps, against a replay in one process."""

from __future__ import annotations

import json
from collections import defaultdict
from functools import partial
from pathlib import Path
from typing import Any, cast

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import nn

from dlr.checkpoint import Checkpointer
from dlr.replicas import join
from dlr.replicas.agreement import MeetingGroup, agree_on_round
from tests.replicas import rounds
from tests.replicas.fleet import Fleet
from tests.replicas.scripts import WIDTH, digest_of
from tests.replicas.test_training import run

members = st.builds(
    MeetingGroup,
    trained=st.just(True),
    applied=st.integers(0, 3),
    applied_in=st.integers(0, 3),
    complete_in=st.integers(0, 3),
    is_ready=st.booleans(),
    inner_steps=st.integers(0, 2),
) | st.builds(MeetingGroup)


@given(st.lists(members, min_size=1, max_size=6))
def test_those_with_their_inner_steps_made_average_and_the_others_take_over_their_state(
    met: list[MeetingGroup],
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


# --- real processes ---------------------------------------------------------------------------------------


def lines_of(folder: Path) -> list[dict[str, Any]]:
    texts = [text for path in sorted(folder.glob("log-*")) for text in path.read_text().splitlines()]
    return [json.loads(text) for text in texts if text.endswith("}")]


def check_against_replay(lines: list[dict[str, Any]], steps: int) -> None:
    """Compare what the groups wrote with the scheme in one process."""
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
        assert line["step"] == min(number * rounds.SYNC_EVERY, steps)
        if number > 0:
            assert groups_of.setdefault(number - 1, line["groups"]) == line["groups"]
    count = -(-steps // rounds.SYNC_EVERY)
    assert sorted(digests) == list(range(count + 1)), "no round is missing"
    assert all(len(each) == 1 for each in digests.values()), "all groups begin a round with the same"
    for of_round in ends.values():
        assert all(len(each) == 1 for each in of_round.values()), "the ranks of a group have the same"
        assert len(set.union(*of_round.values())) == len(of_round), "groups differ within a round"
    sources = {
        (line["begin"], line["group"]): line["source"] for line in lines if line.get("source") is not None
    }
    (seed,) = {line["origin"] for line in lines if "origin" in line}
    replayed = rounds.replay(
        steps,
        seed,
        groups_of=groups_of,
        trained={number: sorted(each) for number, each in trained.items()},
        sources=sources,
    )
    assert [digests[number].pop() for number in range(count + 1)] == replayed


@pytest.mark.real
def test_groups_that_are_killed_in_their_rounds_follow_the_paper_bit_by_bit(tmp_path: Path) -> None:
    fleet = Fleet(tmp_path, rounds.train, 2, 2, minimum=2)
    run(fleet, kills=1, seed=2)
    lines = lines_of(tmp_path)
    check_against_replay(lines, max(line.get("step", 0) for line in lines))
    assert len(fleet.kills) == 1


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


class Saving:
    """A Checkpointer that notes the parameters at each wait."""

    lives_on = stays = False

    def __init__(self, model: nn.Linear) -> None:
        self.state = {"model": model}
        self.seen: list[list[float]] = []

    def join(self, groups: object, loads: bool) -> None:
        """There is no checkpoint."""

    def wait(self) -> None:
        self.seen.append(weights_of(self.state["model"]))


def weights_of(model: nn.Linear) -> list[float]:
    return [float(weight) for weight in model.weight.detach().flatten()]


def test_a_save_under_way_is_waited_for_before_the_outer_step_changes_parameters() -> None:
    model = nn.Linear(2, 2)
    inner = torch.optim.SGD(model.parameters(), lr=0.1)
    ckpt = Saving(model)
    outer = partial(torch.optim.SGD, lr=0.5)
    joined = join(model, inner, checkpoint=cast("Checkpointer", ckpt), sync_every=2, outer=outer)
    after = weights_of(model)
    for step in joined.steps(6):
        if step and step % 2 == 0:
            assert weights_of(model) != after
            assert ckpt.seen == [after]
        ckpt.seen.clear()
        inner.zero_grad()
        model(torch.ones(1, 2)).sum().backward()
        inner.step()
        after = weights_of(model)


LINEAR = nn.Linear(2, 2)
SGD = torch.optim.SGD(LINEAR.parameters(), lr=0.1)


@pytest.mark.parametrize(
    ("model", "optimizer", "others", "says"),
    [
        (list(LINEAR.parameters()), SGD, {}, "model has to be a torch module, and is of type list"),
        (
            LINEAR,
            LINEAR,
            {},
            "optimizer has to be a torch optimizer, or a list of them, and is of type Linear",
        ),
        (LINEAR, [SGD, LINEAR], {}, "optimizer has to be .* type Linear"),
        (LINEAR, [], {}, "optimizer has to be .* type list"),
        (LINEAR, SGD, {"checkpoint": "/data/run1"}, "checkpoint has to be a dlr.checkpoint.Checkpointer"),
        (LINEAR, SGD, {"start": "3"}, "start has to be a number of steps, and is of type str"),
        (LINEAR, SGD, {"sync_every": 5.0, "outer": torch.optim.SGD}, "sync_every has to be .* type float"),
        (
            LINEAR,
            SGD,
            {"sync_every": 5, "outer": SGD},
            "outer has to be a function such as lambda .* type SGD",
        ),
        (LINEAR, SGD, {"sync_every": 5, "outer": lambda _: None}, "outer has to return .* returned NoneType"),
    ],
)
def test_an_argument_of_another_type_is_named(
    model: Any, optimizer: Any, others: dict[str, Any], says: str
) -> None:
    with pytest.raises(TypeError, match=f"dlr.replicas.join: {says}"):
        join(model, optimizer, **others)
