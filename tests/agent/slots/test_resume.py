from __future__ import annotations

import base64
import json
import time
import zlib
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agent.slots.resume import (
    INVENTORY_BYTES,
    MAX_FETCHES,
    Checkpoint,
    Inventory,
    ResumeDecision,
    decide,
    ranks_of,
    without,
)

OLD, NEW = Checkpoint(7, 110, 4), Checkpoint(7, 120, 4)


def both(rank: int) -> Inventory:
    return Inventory(1, "a:1", {NEW: frozenset({rank}), OLD: frozenset({rank})})


def test_an_agent_that_takes_no_part_sends_all_to_storage() -> None:
    assert decide([both(0), both(1), both(2), both(3), None]) == ResumeDecision()


def test_after_a_fetch_that_failed_it_is_decided_again() -> None:
    peer = Inventory(1, "a:1", {NEW: frozenset({3, 1}), OLD: frozenset({3, 1})})
    members = [both(0), Inventory(1, "b:1"), both(2), peer]
    left = without(members, NEW, failed=[(3, 1)], fetched=[])
    assert decide(left) == ResumeDecision(OLD, fetches={1: {1: 3}})
    done = without(members, NEW, failed=[], fetched=[(1, 1)])
    assert decide(done) == ResumeDecision(NEW)


def test_ranks_are_torchs() -> None:
    assert list(ranks_of([Inventory(2), Inventory(1), Inventory(3)])) == [range(2), range(2, 3), range(3, 6)]


CHECKPOINTS = st.builds(Checkpoint, st.integers(1, 4), st.integers(0, 5), st.integers(1, 6))
INVENTORIES = st.builds(
    Inventory,
    st.integers(1, 2),
    st.just("10.0.0.1:4711"),
    st.dictionaries(CHECKPOINTS, st.frozensets(st.integers(0, 5), max_size=6), max_size=3).map(
        lambda held: {c: frozenset(r for r in ranks if r < c.world_size) for c, ranks in held.items()}
    ),
    exhausted=st.none() | CHECKPOINTS,
    lives=st.integers(0, 2),
    bound_to=st.none() | st.tuples(st.integers(0, 3), st.integers(1, 6)),
    no_newcomers=st.booleans(),
)
DECISIONS = st.builds(
    ResumeDecision,
    st.none() | CHECKPOINTS,
    st.dictionaries(st.integers(0, 9), st.dictionaries(st.integers(0, 9), st.integers(0, 9), max_size=3)),
    st.dictionaries(st.text(max_size=9), st.frozensets(st.integers(0, 9), min_size=1), max_size=3),
    *(st.booleans(), st.booleans(), st.booleans()),
    st.none() | st.lists(st.integers(0, 9), max_size=4).map(tuple),
    st.booleans(),
)


@given(st.lists(INVENTORIES, max_size=6))
def test_what_is_agreed_upon_can_be_had_and_is_the_newest(members: list[Inventory]) -> None:
    members = [replace(member, address=f"10.0.0.1:{agent}") for agent, member in enumerate(members)]
    plan = decide(members)
    complete = [
        c
        for c in {c for m in members for c in m.held}
        if {r for m in members for r in m.held.get(c, ())} >= set(range(c.world_size))
    ]
    exhausted = {member.exhausted for member in members}
    assert plan.checkpoint == max(complete, key=lambda c: (c not in exhausted, c), default=None)
    assert plan.is_last_resort == (plan.checkpoint is not None and exhausted >= set(complete))
    if plan.checkpoint is None:
        return
    if plan.shards:
        served = [r for ranks in plan.shards.values() for r in ranks]
        assert sorted(served) == list(range(plan.checkpoint.world_size))
        by_address = {member.address: member for member in members}
        assert all(ranks <= by_address[at].held[plan.checkpoint] for at, ranks in plan.shards.items())
        return
    for agent, ranks in enumerate(ranks_of(members)):
        held = members[agent].held.get(plan.checkpoint, frozenset())
        fetched = plan.fetches.get(agent, {})
        assert set(ranks) == (set(ranks) & held) | set(fetched)
        assert all(rank in members[holder].held[plan.checkpoint] for rank, holder in fetched.items())


@given(st.lists(INVENTORIES, min_size=1, max_size=6), st.data())
def test_failing_fetches_come_to_an_end(members: list[Inventory], data: st.DataObject) -> None:
    left: list[Inventory | None] = list(members)
    bound = sum(len(ranks) for m in members for ranks in m.held.values()) + 1
    for _ in range(bound):
        plan = decide(left)
        pairs = [(a, r, h) for a, ranks in plan.fetches.items() for r, h in ranks.items()]
        if not pairs:
            return
        broken = data.draw(st.sets(st.sampled_from(pairs), min_size=1))
        assert plan.checkpoint is not None
        left = without(
            left,
            plan.checkpoint,
            [(h, r) for a, r, h in broken],
            [(a, r) for a, r, h in pairs if (a, r, h) not in broken],
        )
    raise AssertionError("it never ends")


@given(st.lists(INVENTORIES, max_size=6))
def test_processes_live_on_where_each_goes_into_its_place_of_the_next_world(
    members: list[Inventory],
) -> None:
    plan = decide(members)
    can = any(member.lives for member in members) and not any(member.no_newcomers for member in members)
    size = sum(member.ranks for member in members)
    fit = [
        member.bound_to in (None, (ranks[0], size))
        for member, ranks in zip(members, ranks_of(members), strict=True)
        if member.lives
    ]
    assert plan.lives_on == (can and all(fit) and plan.checkpoint is not None and not plan.is_last_resort)
    quiet = [replace(member, lives=0) for member in members]
    assert replace(plan, lives_on=False) == decide(quiet), "who lives on changes nothing else"


@given(DECISIONS)
def test_a_decision_survives_the_wire(decision: ResumeDecision) -> None:
    assert ResumeDecision.decode(decision.encode()) == decision


@given(INVENTORIES)
def test_an_inventory_survives_the_wire(inventory: Inventory) -> None:
    text = inventory.encode()
    assert len(text) <= INVENTORY_BYTES
    decoded = Inventory.decode(text)
    assert decoded is not None
    assert decoded.held.items() <= inventory.held.items()
    assert decoded.exhausted == inventory.exhausted
    assert (decoded.lives, decoded.no_newcomers) == (inventory.lives, inventory.no_newcomers)
    assert decoded.bound_to == inventory.bound_to
    newest = max(inventory.held, default=None)
    if newest is not None:
        assert decoded.held[newest] == inventory.held[newest]


def test_10_000_agents_are_decided_upon_at_once() -> None:
    size = Checkpoint(7, 120, 10_000)
    members: list[Inventory | None] = [
        Inventory(1, "10.0.0.1:1", {size: frozenset([agent])}) for agent in range(10_000)
    ]
    began_at = time.thread_time()
    assert decide(members) == ResumeDecision(size)
    assert time.thread_time() - began_at < 30


def test_a_world_whose_ranks_have_moved_comes_from_storage() -> None:
    size = 2 * MAX_FETCHES
    whole = Checkpoint(7, 120, size)
    held = [Inventory(1, "a:1", {whole: frozenset({r, (r - size // 2) % size})}) for r in range(size)]
    moved = [*held[: MAX_FETCHES - 1], *held[MAX_FETCHES:], Inventory(1)]
    assert decide(moved) == ResumeDecision()
    replaced = [*held]
    replaced[MAX_FETCHES - 1] = Inventory(1)
    assert decide(replaced) == ResumeDecision(whole, fetches={MAX_FETCHES - 1: {MAX_FETCHES - 1: size - 1}})


@pytest.mark.parametrize(
    "text",
    [
        *("", "[]", "[" * 100_000, '[1,"a",[[1,2,0,"0"]]]', '[1,"a",[[1,2,0,"0"]],[],0,null,0,0]'),
        *(
            '[1e999,"",[],[],0,null,0,0,null]',
            '[1,"",{"a":1},[],0,null,0,0,null]',
            '[1,"",[],[],0,null,1,0,[3]]',
        ),
    ],
)
def test_what_is_no_inventory_is_none(text: str) -> None:
    assert Inventory.decode(text) is None


def test_no_short_text_names_more_ranks_than_a_world_has() -> None:
    held = [[1, step, 100_000, "0-99999"] for step in range(5)]
    assert Inventory.decode(json.dumps([1, "", held[:1], [], 0, None, 0, 0, None])) is not None
    assert Inventory.decode(json.dumps([1, "", held, [], 0, None, 0, 0, None])) is None
    shards = {str(number): "0-99999" for number in range(100)}
    with pytest.raises(ValueError, match="more than 100,000 ranks"):
        ResumeDecision.decode(_compressed(json.dumps([None, {}, shards, [0, 0, 0, 0], None])))


@pytest.mark.parametrize("text", ["[" * 100_000, "5", "[null]", '[[1],{"a":{}},{},[0,0,0,0],null]'])
def test_what_is_no_decision_is_a_value_error(text: str) -> None:
    with pytest.raises(ValueError):
        ResumeDecision.decode(_compressed(text))


def _compressed(text: str) -> bytes:
    return base64.b64encode(zlib.compress(text.encode()))
