"""ElasticShards with replica groups: who learns from which element, whatever group dies, joins or heals."""

from __future__ import annotations

import itertools
from collections import Counter
from collections.abc import Iterator
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from crds.intervals import count, of_numbers, union
from dlr.data import ElasticShards
from dlr.data.groups import parts_of_step
from dlr.shards import ShardsError
from tests.sdk.test_data_groups import Event, FakeReplicas, Fleet, events

RANKS = 2


class OfRank(ElasticShards[int]):
    """That of one rank, though no ranks are connected."""

    def __init__(self, rank: int, length: int, size: int) -> None:
        super().__init__("train", length, size)
        self.rank, self.replicas = rank, FakeReplicas()
        self.deal_to(self.replicas)
        self.parts: Iterator[Any] = iter(self)

    @property
    def _rank(self) -> tuple[int, int]:
        return self.rank, RANKS


class Shards:
    """One rank of a group, with its shards."""

    def __init__(self, rank: int, length: int, size: int) -> None:
        self.dealer = OfRank(rank, length, size)
        self.replicas = self.dealer.replicas
        self._size = size
        self.weight = 0.0

    def learn(self) -> list[int]:
        """Return the elements that it learns from in a step."""
        part = next(self.dealer.parts)
        assert 0 < len(part) <= self._size, "every rank computes something"
        self.weight = part.weight
        return list(part) if part.weight else []


def fleet_of(groups: int, length: int, size: int, state: dict[str, Any] | None = None) -> Fleet:
    return Fleet(lambda rank, _: Shards(rank, length, size), groups, RANKS, state)


def step(fleet: Fleet, dying: frozenset[int] = frozenset()) -> list[int]:
    """Return what the groups whose gradients are in the step have learned."""
    begun, ranks = fleet.level, [rank for group in fleet.groups.values() for rank in group]
    learned = fleet.make_step(dying)
    assert sum(rank.weight for rank in ranks) == pytest.approx(len(begun) * RANKS), (
        "the mean over ranks and groups is that of elements"
    )
    return [element for of_group in learned.values() for element in of_group]


@settings(max_examples=200, deadline=None)
@given(length=st.integers(1, 120), size=st.integers(1, 7), groups=st.integers(1, 5), history=events)
def test_every_element_once_an_epoch_whatever_groups_die_in_a_step_join_heal_or_restart(
    length: int, size: int, groups: int, history: list[Event]
) -> None:
    fleet, epochs = fleet_of(groups, length, size), [Counter[int](), Counter[int]()]
    for event in itertools.chain(history, itertools.repeat(Event(frozenset(), frozenset(), None))):
        if event.restart is not None:
            fleet = fleet_of(event.restart[0], length, size, fleet.state)
        for index in event.joining:
            fleet.join(index)
        epoch = fleet.state["epoch"]
        if epoch == len(epochs):
            break
        epochs[epoch].update(step(fleet, event.dying))
    assert epochs == [Counter(range(length))] * 2


@given(
    numbers=st.frozensets(st.integers(0, 200), min_size=1), size=st.integers(1, 9), most=st.integers(1, 30)
)
def test_parts_of_a_step_are_the_first_elements_that_are_left(
    numbers: frozenset[int], size: int, most: int
) -> None:
    left = of_numbers(numbers)
    parts = parts_of_step(left, size, most)
    dealt = [element for start, end in parts for element in range(start, end)]
    assert 0 < len(parts) <= most
    assert all(0 < end - start <= size for start, end in parts)
    assert dealt == sorted(numbers)[: len(dealt)]
    assert len(parts) == most or count(union(parts)) == len(numbers)


def test_what_a_plain_job_has_learned_counts_in_groups_and_the_other_way_round() -> None:
    plain = ElasticShards("train", 10, size=4)
    parts = iter(plain)
    assert [list(next(parts)), list(next(parts))] == [[0, 1, 2, 3], [4, 5, 6, 7]]
    fleet = fleet_of(2, 10, 1, plain.state_dict())
    assert sorted(step(fleet)) == [8, 9]
    assert (fleet.state["epoch"], fleet.state["done"]) == (1, "")
    step(fleet)
    plain = ElasticShards("train", 10, size=6)
    plain.load_state_dict(fleet.state)
    assert [list(part) for part in plain] == [[4, 5, 6, 7, 8, 9]]


def test_a_whole_epoch_that_a_plain_job_ended_with_is_over_in_groups() -> None:
    plain = ElasticShards("train", 3, size=3)
    next(iter(plain))
    fleet = fleet_of(1, 3, 2, plain.state_dict())
    assert sorted(step(fleet)) == [0, 1, 2]
    assert fleet.state["epoch"] == 2


def test_a_second_part_within_a_step_is_refused() -> None:
    shards: ElasticShards[int] = ElasticShards("train", 3)
    shards.deal_to(FakeReplicas())
    parts = iter(shards)
    next(parts)
    with pytest.raises(ShardsError, match="within step 0: take one in each turn"):
        next(parts)
