"""ElasticShards with replica groups: who learns from which element, whatever group dies, joins or heals."""

from __future__ import annotations

import itertools
import json
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
from tests.sdk.test_data_groups import Event, FakeReplicas, events

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


class Fleet:
    """Groups that train together as dlr.replicas has them: who joins contributes nothing to two steps, and takes
    over the state of another during the second."""

    def __init__(self, groups: int, length: int, size: int, state: dict[str, Any] | None = None) -> None:
        self._length, self._size, self._step = length, size, 0
        self.groups = {index: self._group(state) for index in range(groups)}
        self._healing: dict[int, int] = {}

    def _group(self, state: dict[str, Any] | None) -> list[OfRank]:
        ranks = [OfRank(rank, self._length, self._size) for rank in range(RANKS)]
        for each in ranks if state is not None else ():
            each.load_state_dict(json.loads(json.dumps(state)))
        return ranks

    @property
    def level(self) -> list[int]:
        return [index for index in sorted(self.groups) if index not in self._healing]

    @property
    def state(self) -> dict[str, Any]:
        """The one state of all ranks of all groups."""
        states = [each.state_dict() for index in self.level for each in self.groups[index]]
        assert all(state == states[0] for state in states)
        return states[0]

    def join(self, index: int) -> None:
        if index not in self.groups:
            self.groups[index], self._healing[index] = self._group(None), 2

    def make_step(self, dying: frozenset[int]) -> list[int]:
        """Return what the groups whose gradients are in the step have learned."""
        begun, state, learned = self.level, self.state, dict[int, list[int]]()
        total = 0.0
        for index, ranks in self.groups.items():
            learned[index] = []
            for each in ranks:
                each.replicas.begin(self._step, begun, index)
                part = next(each.parts)
                assert 0 < len(part) <= self._size, "every rank computes something"
                learned[index] += part if part.weight else []
                total += part.weight
        assert total == pytest.approx(len(begun) * RANKS), (
            "the mean over ranks and groups is that of elements"
        )
        for index in dying - ({begun[-1]} if dying.issuperset(begun) else set()):
            self.groups.pop(index, None)
            self._healing.pop(index, None)
        self._step += 1
        committed = [index for index in begun if index in self.groups]
        for index, ranks in self.groups.items():
            for each in ranks:
                if self._healing.get(index) == 1:
                    each.load_state_dict(state)
                each.replicas.commit(committed)
        self._healing = {index: left - 1 for index, left in self._healing.items() if left > 1}
        return [element for index in committed for element in learned[index]]


@settings(max_examples=200, deadline=None)
@given(length=st.integers(1, 120), size=st.integers(1, 7), groups=st.integers(1, 5), history=events)
def test_every_element_once_an_epoch_whatever_groups_die_in_a_step_join_heal_or_restart(
    length: int, size: int, groups: int, history: list[Event]
) -> None:
    fleet, epochs = Fleet(groups, length, size), [Counter[int](), Counter[int]()]
    for event in itertools.chain(history, itertools.repeat(Event(frozenset(), frozenset(), None))):
        if event.restart is not None:
            fleet = Fleet(event.restart[0], length, size, fleet.state)
        for index in event.joining:
            fleet.join(index)
        epoch = fleet.state["epoch"]
        if epoch == len(epochs):
            break
        epochs[epoch].update(fleet.make_step(event.dying))
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
    fleet = Fleet(2, 10, 1, plain.state_dict())
    assert sorted(fleet.make_step(frozenset())) == [8, 9]
    assert (fleet.state["epoch"], fleet.state["done"]) == (1, "")
    fleet.make_step(frozenset())
    plain = ElasticShards("train", 10, size=6)
    plain.load_state_dict(fleet.state)
    assert [list(part) for part in plain] == [[4, 5, 6, 7, 8, 9]]


def test_a_whole_epoch_that_a_plain_job_ended_with_is_over_in_groups() -> None:
    plain = ElasticShards("train", 3, size=3)
    next(iter(plain))
    fleet = Fleet(1, 3, 2, plain.state_dict())
    assert sorted(fleet.make_step(frozenset())) == [0, 1, 2]
    assert fleet.state["epoch"] == 2


def test_a_second_part_within_a_step_is_refused() -> None:
    shards: ElasticShards[int] = ElasticShards("train", 3)
    shards.deal_to(FakeReplicas())
    parts = iter(shards)
    next(parts)
    with pytest.raises(ShardsError, match="within step 0: take one in each turn"):
        next(parts)
