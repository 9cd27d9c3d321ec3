"""Samplers with replica groups: who learns from which sample, whatever group dies, joins or heals."""

from __future__ import annotations

import itertools
import json
import pickle
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn
from torch.utils.data import DataLoader, Dataset

from crds.intervals import count, first, minus, union
from dlr.data import ElasticBatchSampler, ElasticStream, GlobalBatch, epochs
from dlr.data.groups import Contribution, Contributors, EpochPlace, StepRule, share
from tests.counting import calls

many = settings(max_examples=200, deadline=None)
Commit = Callable[[int, Sequence[int]], None]


@dataclass
class FakeReplicas:
    """What `dlr.replicas.join` returns, of one rank, moved by the test."""

    applied: int = 0
    contributing: Sequence[int] = (0,)
    contributors: Contribution = field(default=Contribution(0, 1))
    is_accumulating: bool = False
    acts: list[Commit] = field(default_factory=list)

    def begin(self, step: int, groups: Sequence[int], mine: int) -> None:
        """Begin a step."""
        self.applied, self.contributing = step, groups
        self.contributors = Contribution(groups.index(mine) if mine in groups else None, len(groups))

    def commit(self, groups: Sequence[int]) -> None:
        """Commit the step."""
        self.applied += 1
        for act in self.acts:
            act(self.applied - 1, groups)

    def call_after_commit(self, act: Commit) -> None:
        self.acts.append(act)

    @contextmanager
    def accumulate(self) -> Iterator[None]:
        self.is_accumulating = True
        yield
        self.is_accumulating = False


class ReadAhead:
    """A loader that has read some micro-batches before it gives the first."""

    def __init__(self, dealer: Iterable[Any], ahead: int) -> None:
        self._dealer, self._ahead = dealer, ahead

    def __iter__(self) -> Iterator[Any]:
        dealt = iter(self._dealer)
        read = list(itertools.islice(dealt, self._ahead))
        while read:
            yield read.pop(0)
            read += itertools.islice(dealt, 1)


class Rank:
    """One rank of a group, with its sampler and loader."""

    def __init__(self, dealer: Any, loader: Iterable[Any]) -> None:
        self.dealer = dealer
        self.replicas = FakeReplicas()
        dealer.deal_to(self.replicas)
        self.batches: Iterator[GlobalBatch[Any]] = dealer.global_batches(loader)

    def learn(self) -> list[Any]:
        """Return the samples that it learns from in a step."""
        batch = next(self.batches)
        micros = list(batch)
        assert [micro.last for micro in micros] == [False] * (len(micros) - 1) + [True]
        assert all(len(micro.data) for micro in micros), "every rank computes something"
        learned = [sample for micro in micros if micro.weight for sample in micro.data]
        assert len(learned) == len(batch.indices)
        return learned


Make = Callable[[int, int], tuple[Any, Iterable[Any]]]
"""Makes a sampler and its loader for a rank of so many."""


def ranks_by(make: Make) -> Callable[[int, int], Rank]:
    """Return what makes ranks with these samplers."""
    return lambda rank, ranks: Rank(*make(rank, ranks))


class Fleet:
    """Groups that train together as dlr.replicas has them: who joins contributes nothing to two steps, and takes
    over the state of another during the second.

    Args:
        make: makes a rank of so many: what deals to it, its replicas, and `learn`.
        lives: whether the first rank of a group lives on when the others die.
    """

    def __init__(
        self,
        make: Callable[[int, int], Any],
        groups: int,
        ranks: int,
        state: dict[str, Any] | None = None,
        *,
        lives: bool = False,
    ) -> None:
        self._make, self._ranks, self._lives = make, ranks, lives
        self._left: dict[int, Any] = {}
        """First ranks of groups whose others have died, in the midst of a step."""
        self.groups = {index: self._group(state) for index in range(groups)}
        self._healing: dict[int, int] = {}
        """Steps to which a group contributes nothing yet."""
        self._step = 0

    def _group(self, state: dict[str, Any] | None) -> list[Any]:
        ranks = [self._make(rank, self._ranks) for rank in range(self._ranks)]
        for rank in ranks if state is not None else ():
            rank.dealer.load_state_dict(json.loads(json.dumps(state)))
        return ranks

    @property
    def level(self) -> list[int]:
        """The groups that have the state."""
        return [index for index in sorted(self.groups) if index not in self._healing]

    @property
    def state(self) -> dict[str, Any]:
        """The one state of all ranks of all groups."""
        states = [rank.dealer.state_dict() for index in self.level for rank in self.groups[index]]
        assert all(state == states[0] for state in states)
        return states[0]

    def join(self, index: int) -> None:
        if index not in self.groups:
            self.groups[index], self._healing[index] = self._group(None), 2
            if index in self._left:
                self.groups[index][0] = self._left.pop(index)

    def make_step(self, dying: Iterable[int] = ()) -> dict[int, list[Any]]:
        """Return what the groups that contribute have learned, as it is committed."""
        begun, state = self.level, self.state
        learned: dict[int, list[Any]] = {}
        for index, ranks in self.groups.items():
            for rank in ranks:
                rank.replicas.begin(self._step, begun, index)
            learned[index] = [sample for rank in ranks for sample in rank.learn()]
        dying = set(dying)
        if dying.issuperset(begun):  # without one that has the state, all would begin from a checkpoint
            dying.remove(begun[-1])
        for index in dying & self.groups.keys():
            ranks = self.groups.pop(index)
            if self._lives:
                self._left[index] = ranks[0]
            self._healing.pop(index, None)
        self._step += 1
        committed = [index for index in begun if index in self.groups]
        for index, ranks in self.groups.items():
            for rank in ranks:
                if self._healing.get(index) == 1:
                    rank.dealer.load_state_dict(state)
                rank.replicas.commit(committed)
        self._healing = {index: left - 1 for index, left in self._healing.items() if left > 1}
        return {index: learned[index] for index in committed}


@dataclass(frozen=True)
class Event:
    """What happens in a step."""

    dying: frozenset[int]
    joining: frozenset[int]
    restart: tuple[int, int] | None
    """Number of groups and of ranks with which all begin again from the state, before the step."""


indices = st.frozensets(st.integers(0, 5), max_size=4)
events = st.lists(
    st.builds(
        Event, indices, indices, st.none() | st.none() | st.tuples(st.integers(1, 5), st.integers(1, 3))
    ),
    max_size=25,
)


def run(
    make: Make, groups: int, history: Sequence[Event], epochs: int = 2, *, lives: bool = False
) -> Iterator[tuple[int, list[Any]]]:
    """Yield the epoch of each step, and what was learned in it."""
    fleet = Fleet(ranks_by(make), groups, 2, lives=lives)
    quiet = Event(frozenset(), frozenset(), None)
    for event in itertools.chain(history, itertools.repeat(quiet)):
        if event.restart is not None:
            fleet = Fleet(ranks_by(make), *event.restart, fleet.state, lives=lives)
        for index in event.joining:
            fleet.join(index)
        epoch = fleet.state["epoch"]
        if epoch == epochs:
            return
        learned = fleet.make_step(event.dying)
        assert len(fleet.state["holes"]) < 200
        yield epoch, [sample for index in learned for sample in learned[index]]


def once_an_epoch(steps: Iterable[tuple[int, list[Any]]], whole: list[Any], epochs: int = 2) -> bool:
    by_epoch: dict[int, list[Any]] = {epoch: [] for epoch in range(epochs)}
    for epoch, learned in steps:
        by_epoch[epoch] += learned
    return all(sorted(learned) == whole for learned in by_epoch.values())


@many
@given(
    length=st.integers(1, 60),
    batch=st.integers(1, 15),
    micro=st.none() | st.integers(1, 8),
    ahead=st.integers(1, 9),
    constant=st.booleans(),
    groups=st.integers(1, 5),
    history=events,
    lives=st.booleans(),
)
def test_every_sample_once_an_epoch_whatever_groups_die_in_a_step_join_heal_or_restart(
    length: int,
    batch: int,
    micro: int | None,
    ahead: int,
    constant: bool,
    groups: int,
    history: list[Event],
    lives: bool,
) -> None:
    def make(rank: int, ranks: int) -> tuple[ElasticBatchSampler, ReadAhead]:
        sampler = ElasticBatchSampler(
            range(length),
            ranks,
            rank,
            global_batch_size=batch,
            micro_batch_size=micro,
            constant_batch=constant,
        )
        return sampler, ReadAhead(sampler, ahead)

    assert once_an_epoch(run(make, groups, history, lives=lives), list(range(length)))


FILES = {f"file-{number}": size for number, size in enumerate((7, 0, 12, 1, 30, 5))}
LINES = sorted(f"{file}/{number:02}" for file, size in FILES.items() for number in range(size))


def read(file: str, start: int) -> Iterator[str]:
    return iter([f"{file}/{number:02}" for number in range(start, FILES[file])])


def stream(rank: int = 0, ranks: int = 1, **options: Any) -> ElasticStream:
    options = {"global_batch_size": 8, "window": 4, "collate": list, **options}
    return ElasticStream(list(FILES), read, ranks, rank, **options)


@given(
    ahead=st.integers(1, 5),
    constant=st.booleans(),
    groups=st.integers(1, 4),
    history=events,
    lives=st.booleans(),
)
def test_every_sample_of_a_stream_once_an_epoch_whatever_happens_to_its_groups(
    ahead: int, constant: bool, groups: int, history: list[Event], lives: bool
) -> None:
    def make(rank: int, ranks: int) -> tuple[ElasticStream, ReadAhead]:
        one = stream(rank, ranks, constant_batch=constant)
        return one, ReadAhead(one, ahead)

    assert once_an_epoch(run(make, groups, history, lives=lives), LINES)


class Numbers(Dataset[int]):
    def __len__(self) -> int:
        return 60

    def __getitem__(self, index: int) -> int:
        return index


DEATH_AND_RETURN = [
    Event(frozenset(), frozenset(), None),
    Event(frozenset({1}), frozenset(), None),
    Event(frozenset(), frozenset({1}), None),
    Event(frozenset({2}), frozenset(), None),
]


@pytest.mark.real
def test_what_the_processes_of_a_loader_have_read_ahead_is_dropped_and_dealt_again() -> None:
    def make(rank: int, ranks: int) -> tuple[ElasticBatchSampler, Iterable[Any]]:
        sampler = ElasticBatchSampler(Numbers(), ranks, rank, global_batch_size=7, micro_batch_size=2)
        return sampler, DataLoader(
            Numbers(),
            batch_sampler=sampler,
            num_workers=1,
            prefetch_factor=4,
            persistent_workers=True,
            collate_fn=list,
        )

    assert once_an_epoch(run(make, 3, DEATH_AND_RETURN, epochs=1), list(range(60)), epochs=1)


@pytest.mark.real
def test_the_processes_of_a_streams_loader_begin_again_where_the_groups_go_on() -> None:
    def make(rank: int, ranks: int) -> tuple[ElasticStream, Iterable[Any]]:
        one = stream(rank, ranks, micro_batch_size=2)
        return one, DataLoader(one, batch_size=None, num_workers=2)

    assert once_an_epoch(run(make, 3, DEATH_AND_RETURN, epochs=1), LINES, epochs=1)


def test_a_stream_is_copied_to_other_processes_without_the_replica_groups() -> None:
    one = stream()
    replicas = FakeReplicas()
    replicas.acts.append(lambda step, groups: None)  # which no pickle takes
    replicas.begin(0, (2, 4), 4)
    one.deal_to(replicas)
    batch = next(one.global_batches(one))
    copied = pickle.loads(pickle.dumps(copy_of(one)))
    assert list(copied) == list(one)
    assert next(iter(copied)) == next(iter(batch)).data


def copy_of(one: ElasticStream) -> ElasticStream:
    one._collate = list  # a builtin is pickled by its name
    return one


@many
@given(
    length=st.integers(1, 80),
    batch=st.integers(1, 15),
    done=st.integers(0, 3),
    sizes=st.tuples(st.integers(1, 7), st.integers(1, 3)),
    others=st.tuples(st.integers(1, 7), st.integers(1, 3)),
)
def test_with_a_constant_batch_a_step_has_the_same_samples_whatever_groups_and_ranks_are_there(
    length: int, batch: int, done: int, sizes: tuple[int, int], others: tuple[int, int]
) -> None:
    def learned(groups: int, ranks: int) -> list[list[int]]:
        def make(rank: int, ranks: int) -> tuple[ElasticBatchSampler, Iterable[Any]]:
            sampler = ElasticBatchSampler(range(length), ranks, rank, global_batch_size=batch)
            return sampler, sampler

        fleet = Fleet(ranks_by(make), groups, ranks)
        return [sorted(itertools.chain(*fleet.make_step().values())) for _ in range(done + 1)]

    assert learned(*sizes) == learned(*others)


@many
@given(
    length=st.integers(1, 80),
    batch=st.integers(1, 12),
    groups=st.integers(1, 7),
    ranks=st.integers(1, 3),
    micro=st.none() | st.integers(1, 4),
    constant=st.booleans(),
)
def test_weighted_and_averaged_over_ranks_and_groups_every_sample_of_a_step_counts_the_same(
    length: int, batch: int, groups: int, ranks: int, micro: int | None, constant: bool
) -> None:
    weights: dict[int, float] = {}
    for group, rank in itertools.product(range(groups), range(ranks)):
        one = ElasticBatchSampler(
            range(length),
            ranks,
            rank,
            global_batch_size=batch,
            micro_batch_size=micro,
            constant_batch=constant,
        )
        replicas = FakeReplicas()
        replicas.begin(0, range(groups), group)
        one.deal_to(replicas)
        for part in next(one.global_batches(one)):
            for sample in part.data if part.weight else ():
                weights[sample] = part.weight / len(part.data) / ranks / groups
    assert len(weights) == min(batch if constant else batch * groups, length)
    assert list(weights.values()) == pytest.approx([1 / len(weights)] * len(weights))


def test_gradients_are_averaged_with_the_last_micro_batch_of_a_step_alone() -> None:
    one = ElasticBatchSampler(range(11), 1, 0, global_batch_size=11, micro_batch_size=2)
    replicas = FakeReplicas()
    replicas.begin(0, range(3), 0)
    one.deal_to(replicas)
    for micro in next(one.global_batches(one)):
        with micro.accumulate(nn.Linear(1, 1)):
            assert replicas.is_accumulating is not micro.last


def test_what_a_dead_group_has_not_learned_is_first_in_the_next_step() -> None:
    def make(rank: int, ranks: int) -> tuple[ElasticBatchSampler, Iterable[Any]]:
        sampler = ElasticBatchSampler(range(90), ranks, rank, False, global_batch_size=30)
        return sampler, sampler

    fleet = Fleet(ranks_by(make), 3, 2)
    assert {index: sorted(learned) for index, learned in fleet.make_step(dying=[1]).items()} == {
        0: list(range(10)),
        2: list(range(20, 30)),
    }
    assert (fleet.state["consumed"], fleet.state["holes"]) == (30, "10-19")
    assert {index: sorted(learned) for index, learned in fleet.make_step().items()} == {
        0: [*range(10, 20), *range(30, 35)],
        2: list(range(35, 50)),
    }
    assert (fleet.state["consumed"], fleet.state["holes"]) == (50, "")


def test_a_step_counts_when_the_groups_commit_it_and_one_that_was_not_dealt_does_not() -> None:
    one = ElasticBatchSampler(range(20), 1, 0, False, global_batch_size=10)
    replicas = FakeReplicas()
    one.deal_to(replicas)
    replicas.begin(0, (0,), 0)
    replicas.commit((0,))  # another sampler's
    batches = one.global_batches(one)
    replicas.begin(1, (0,), 0)
    list(next(batches))
    assert one.consumed == 0
    replicas.commit((0,))
    assert one.consumed == 10


def test_two_global_batches_in_one_step_are_refused_but_not_after_a_state_was_loaded() -> None:
    one = ElasticBatchSampler(range(20), 1, 0, False, global_batch_size=10)
    replicas = FakeReplicas()
    one.deal_to(replicas)
    state = one.state_dict()
    batches = one.global_batches(one)
    next(batches)
    one.load_state_dict(state)
    assert next(batches).indices == list(range(10))
    with pytest.raises(RuntimeError, match="a second global batch was asked for within step 0"):
        next(batches)
    with pytest.raises(RuntimeError, match="leave advance"):
        one.advance()


def test_an_iterator_that_cannot_begin_again_is_refused_where_it_would_have_to() -> None:
    one = ElasticBatchSampler(range(20), 1, 0, False, global_batch_size=10)
    replicas = FakeReplicas()
    one.deal_to(replicas)
    batches = one.global_batches(iter(one))
    next(batches)
    replicas.commit((0,))
    replicas.begin(1, (0, 1), 0)
    with pytest.raises(ValueError, match="the loader is an iterator, which cannot begin again"):
        next(batches)


@pytest.mark.parametrize(
    "place",
    [
        *({"consumed": 10, "holes": holes} for holes in ("5-10", "9-", "x")),
        {"consumed": 0, "holes": "0"},
        *({"consumed": consumed} for consumed in (-1, 20, 21, 1.5)),
        *({"epoch": epoch} for epoch in (-1, True)),
    ],
    ids=str,
)
def test_a_place_that_is_none_is_refused(place: dict[str, Any]) -> None:
    one = ElasticBatchSampler(range(20), 1, 0, global_batch_size=10)
    with pytest.raises(ValueError, match=r"there is no place in training|is no range"):
        one.load_state_dict({**one.state_dict(), **place})
    assert (one.epoch, one.consumed) == (0, 0)


def test_holes_are_dealt_by_a_job_without_groups_that_goes_on_from_the_state() -> None:
    one = ElasticBatchSampler(range(20), 1, 0, False, global_batch_size=4)
    one.load_state_dict({**one.state_dict(), "consumed": 12, "holes": "2-3,7"})
    assert len(one) == 3
    assert list(one) == [[2, 3, 7, 12], [13, 14, 15, 16], [17, 18, 19]]


# --- the pure part -------------------------------------------------------------------------------------------

steps = st.lists(st.tuples(st.integers(1, 12), st.integers(0)), max_size=40)
"""By step, how many groups begin it, and which of them end it, as bits."""


@many
@given(
    length=st.integers(1, 5_000),
    batch=st.integers(1, 300),
    constant=st.booleans(),
    drop_last=st.booleans(),
    history=steps,
)
def test_holes_are_fewer_than_the_samples_of_the_largest_step_and_few_ranges(
    length: int, batch: int, constant: bool, drop_last: bool, history: list[tuple[int, int]]
) -> None:
    if drop_last and length < batch:
        return
    rule = StepRule(length, batch, constant, drop_last)
    place = rule.begin(0)
    largest = 0
    for groups, bits in history:
        largest = max(largest, rule.step_size(groups))
        place = rule.after(place, range(groups), {index for index in range(groups) if bits >> index & 1})
        assert count(place.left) >= (batch if drop_last else 1)
        assert count(rule.holes(place)) <= largest
        assert len(rule.holes(place)) <= 24
        assert rule.resume(place.epoch, rule.consumed(place), rule.holes(place)) == place


@many
@given(
    left=st.frozensets(st.integers(0, 60), min_size=1),
    batch=st.integers(1, 40),
    groups=st.integers(1, 9),
    constant=st.booleans(),
)
def test_shares_of_a_step_are_disjoint_together_the_step_and_even_up_to_one_sample(
    left: frozenset[int], batch: int, groups: int, constant: bool
) -> None:
    place = EpochPlace(0, union(*(((number, number + 1),) for number in left)))
    step = StepRule(61, batch, constant, False).step(place, groups)
    assert step == first(place.left, batch if constant else batch * groups, 99)
    shares = [share(step, Contributors(tuple(range(groups)), at)) for at in range(groups)]
    assert union(*shares) == step
    assert sum(map(count, shares)) == count(step)
    assert max(map(count, shares)) - min(map(count, shares)) <= 1


def test_a_commit_costs_as_much_more_as_there_are_more_groups_and_holes() -> None:
    def cost(size: int) -> int:
        left = tuple((at * 4, at * 4 + 2) for at in range(size))
        rule = StepRule(4 * size, 2 * size, True, False)
        place, committed = EpochPlace(0, left), frozenset(range(0, size, 2))
        after = rule.after(place, range(size), committed)
        assert count(after.left) == size
        assert minus(after.left, left) == ()
        return calls(lambda: rule.after(place, range(size), committed))

    assert cost(4_000) < 4.5 * cost(1_000)


@given(st.lists(st.integers(1, 4), min_size=1, max_size=6), st.integers(1, 3))
def test_who_lives_on_in_worlds_of_other_sizes_learns_from_its_part_in_each(
    sizes: list[int], ahead: int
) -> None:
    """All ranks together learn from the step's very samples, whatever a loader has read ahead."""
    with pytest.MonkeyPatch.context() as patch:
        place = [0, 4]
        patch.setattr(epochs, "are_connected", lambda: True)
        patch.setattr(epochs.dist, "get_rank", lambda: place[0])
        patch.setattr(epochs.dist, "get_world_size", lambda: place[1])

        def rank(number: int) -> Rank:
            place[:] = number, 4
            one = ElasticBatchSampler(range(60), global_batch_size=10, micro_batch_size=2)
            return Rank(one, ReadAhead(one, ahead))

        ranks = [rank(number) for number in range(4)]
        whole = ElasticBatchSampler(range(60), 1, 0, global_batch_size=10)
        for step, (size, expected) in enumerate(zip(sizes, whole, strict=False)):
            learned: list[int] = []
            for place[0], one in enumerate(reversed(ranks[:size])):
                place[1] = size
                learned += one.learn()
            assert sorted(learned) == sorted(expected), step
            for one in ranks[:size]:
                one.replicas.commit([0])
            for one in ranks[size:]:  # it was away
                one.dealer.load_state_dict(ranks[0].dealer.state_dict())
                one.replicas.applied = step + 1
