"""ElasticBatchSampler: who gets which sample, through any changes of the world."""

from __future__ import annotations

import itertools
import json
import math
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor
from torch.utils.data import DataLoader, Dataset, DistributedSampler, TensorDataset

from dlr.checkpoint import Checkpointer
from dlr.data import ElasticBatchSampler
from dlr.data.epochs import MicroBatch

many = settings(max_examples=300, deadline=None)
sizes = st.integers(1, 15)
worlds = st.integers(1, 9)
micro_sizes = st.none() | st.integers(1, 8)
runs = st.lists(st.tuples(worlds, micro_sizes, st.integers(0, 6)), max_size=8)
"""A training's history: with how many ranks it ran, their micro-batch size, after how many steps it was killed."""


def samplers(length: int, world: int, **options: Any) -> list[ElasticBatchSampler]:
    """One for each rank."""
    return [
        ElasticBatchSampler(range(length), num_replicas=world, rank=rank, **options) for rank in range(world)
    ]


def steps(ranks: list[ElasticBatchSampler]) -> Iterator[list[int]]:
    """The samples that the ranks together learn from, step by step through the rest of the epoch."""
    for step in zip(*(sampler.global_batches(iter(sampler)) for sampler in ranks), strict=True):
        for micro_batches in zip(*step, strict=True):
            assert all(micro.data for micro in micro_batches), "every rank computes something"
        yield [index for batch in step for index in batch.indices]


def assert_all_ranks_agree(ranks: list[ElasticBatchSampler]) -> dict[str, int]:
    states = [sampler.state_dict() for sampler in ranks]
    assert all(state == states[0] for state in states)
    return states[0]


def train_through(length: int, history: list[tuple[int, int | None, int]], **options: Any) -> list[list[int]]:
    """The steps of epoch 0, each sorted: killed and resumed with another world, then on to the end."""
    state: dict[str, int] | None = None
    done: list[list[int]] = []
    for world, micro_batch_size, steps_until_killed in [*history, (1, None, length)]:
        ranks = samplers(length, world, micro_batch_size=micro_batch_size, **options)
        for sampler in ranks:
            if state is not None:
                sampler.load_state_dict(json.loads(json.dumps(state)))
        if ranks[0].epoch > 0:
            break
        done += [sorted(step) for step in itertools.islice(steps(ranks), steps_until_killed)]
        state = assert_all_ranks_agree(ranks)
    return done


@many
@given(length=st.integers(1, 60), batch=sizes, history=runs, drop_last=st.booleans())
def test_steps_are_those_of_one_process_that_was_never_restarted(
    length: int, batch: int, history: list[tuple[int, int | None, int]], drop_last: bool
) -> None:
    drop_last = drop_last and length >= batch
    options = {"global_batch_size": batch, "drop_last": drop_last}
    done = train_through(length, history, **options)
    assert done == train_through(length, [], **options)
    assert [len(step) for step in done] == [batch] * (length // batch) + [length % batch] * (
        length % batch > 0 and not drop_last
    )


@many
@given(
    length=st.integers(1, 50),
    batches=st.lists(st.tuples(sizes, worlds, st.integers(0, 4)), max_size=6),
    last=sizes,
)
def test_the_global_batch_may_change_within_an_epoch(
    length: int, batches: list[tuple[int, int, int]], last: int
) -> None:
    done: list[int] = []
    state = samplers(length, 1, global_batch_size=1)[0].state_dict()
    for batch, world, steps_until_killed in [*batches, (last, 1, length)]:
        ranks = samplers(length, world, global_batch_size=batch)
        for sampler in ranks:
            sampler.load_state_dict(state)
        if ranks[0].epoch == 0:
            done += itertools.chain.from_iterable(itertools.islice(steps(ranks), steps_until_killed))
        state = assert_all_ranks_agree(ranks)
    assert sorted(done) == list(range(length))


@many
@given(length=st.integers(1, 60), batch=sizes, world=worlds, micro=micro_sizes, start=st.integers(0, 5))
def test_every_rank_computes_as_many_micro_batches_none_empty_none_too_large(
    length: int, batch: int, world: int, micro: int | None, start: int
) -> None:
    ranks = samplers(length, world, global_batch_size=batch, micro_batch_size=micro)
    for sampler in ranks:
        for _ in range(start):
            sampler.advance()
    dealt = [list(sampler) for sampler in ranks]
    assert {len(micro_batches) for micro_batches in dealt} == {len(sampler) for sampler in ranks}
    assert len(ranks[0]) >= ranks[0].steps_per_epoch - start
    assert all(1 <= len(part) <= (micro or batch) for part in itertools.chain.from_iterable(dealt))
    for at_once in zip(*dealt, strict=True):
        assert max(map(len, at_once)) - min(map(len, at_once)) <= 1


@many
@given(length=st.integers(1, 500), seed=st.integers(0, 2**31), epoch=st.integers(0, 1000))
def test_order_is_the_one_of_torch_and_depends_on_seed_and_epoch_alone(
    length: int, seed: int, epoch: int
) -> None:
    ours = ElasticBatchSampler(range(length), 1, 0, seed=seed, global_batch_size=7)
    theirs = DistributedSampler(range(length), 1, 0, seed=seed)
    ours.set_epoch(epoch)
    theirs.set_epoch(epoch)
    assert list(itertools.chain.from_iterable(ours)) == list(theirs)


def test_an_epoch_ends_with_its_last_step_and_the_next_begins() -> None:
    sampler = ElasticBatchSampler(range(10), 1, 0, global_batch_size=4)
    seen = []
    while sampler.epoch < 3:
        seen.append(list(itertools.chain.from_iterable(steps([sampler]))))
    assert [sorted(epoch) for epoch in seen] == [list(range(10))] * 3
    assert len({tuple(epoch) for epoch in seen}) == 3
    sampler.advance()
    sampler.set_epoch(3)  # changes nothing
    assert (sampler.epoch, sampler.consumed) == (3, 4)
    sampler.set_epoch(4)
    assert (sampler.epoch, sampler.consumed) == (4, 0)


def test_an_epoch_with_too_little_left_for_a_larger_batch_is_over() -> None:
    small = ElasticBatchSampler(range(10), 1, 0, drop_last=True, global_batch_size=4)
    small.advance()
    large = ElasticBatchSampler(range(10), 1, 0, drop_last=True, global_batch_size=7)
    large.load_state_dict(small.state_dict())
    assert (large.epoch, large.consumed) == (1, 0)


def test_a_step_counts_once_it_is_whole() -> None:
    sampler = ElasticBatchSampler(range(12), 1, 0, global_batch_size=6, micro_batch_size=2, shuffle=False)
    batches = sampler.global_batches(iter(sampler))
    for micro, last in zip(next(batches), (False, False, True), strict=True):
        assert sampler.state_dict()["consumed"] == 0
        assert micro.last is last
    assert sampler.state_dict()["consumed"] == 6
    next(iter(next(batches)))  # left early: its other micro-batches are skipped
    assert list(batches) == []
    assert sampler.state_dict()["epoch"] == 1


class Numbers(Dataset[int]):
    def __len__(self) -> int:
        return 50

    def __getitem__(self, index: int) -> int:
        return index


@pytest.mark.real
def test_a_loader_that_reads_ahead_does_not_move_the_state() -> None:
    sampler = ElasticBatchSampler(Numbers(), 2, 1, global_batch_size=8, micro_batch_size=2)
    read_ahead: DataLoader[Tensor] = DataLoader(
        Numbers(), batch_sampler=sampler, num_workers=2, prefetch_factor=4
    )
    seen: list[int] = []
    for batch in itertools.islice(sampler.global_batches(read_ahead), 3):
        here = [index for micro in batch for index in micro.data.tolist()]
        assert here == batch.indices
        seen += here
    assert sampler.state_dict()["consumed"] == 3 * 8

    alone = ElasticBatchSampler(Numbers(), 1, 0, global_batch_size=8)
    alone.load_state_dict(sampler.state_dict())
    rest: DataLoader[Tensor] = DataLoader(Numbers(), batch_sampler=alone)
    assert len(rest) == math.ceil((50 - 24) / 8)
    seen += [
        index for batch in alone.global_batches(rest) for micro in batch for index in micro.data.tolist()
    ]
    rank_0 = ElasticBatchSampler(Numbers(), 2, 0, global_batch_size=8, micro_batch_size=2)
    seen += itertools.chain.from_iterable(itertools.islice(rank_0, 3 * 2))
    assert sorted(seen) == list(range(50))


def test_loaders_that_would_deal_otherwise_are_refused() -> None:
    sampler = ElasticBatchSampler(range(8), 1, 0, global_batch_size=4)
    data = TensorDataset(torch.arange(8))
    for loader in (
        DataLoader(data, sampler=sampler),
        DataLoader(data, batch_sampler=ElasticBatchSampler(data, 1, 0, global_batch_size=4)),
        DataLoader(data, batch_sampler=sampler, in_order=False),
    ):
        with pytest.raises(ValueError, match="batch_sampler"):
            next(sampler.global_batches(loader))


@pytest.mark.parametrize(
    ("options", "says"),
    [
        ({"num_replicas": 2, "rank": 2}, "no rank 2 among 2"),
        ({"num_replicas": None, "rank": None}, "process group"),
        ({"global_batch_size": 0}, "at least one sample"),
        ({"micro_batch_size": 0}, "at least one sample"),
        ({"dataset": range(0)}, "no step in an epoch: 0 samples"),
        ({"drop_last": True, "global_batch_size": 11}, "no step in an epoch: 10 samples"),
    ],
)
def test_what_cannot_be_is_refused_and_says_why(options: dict[str, Any], says: str) -> None:
    usual = {"dataset": range(10), "num_replicas": 1, "rank": 0, "global_batch_size": 4}
    with pytest.raises(ValueError, match=says):
        ElasticBatchSampler(**usual | options)


@pytest.mark.parametrize("change", [{"dataset": range(11)}, {"seed": 1}, {"shuffle": False}])
def test_another_order_is_refused_within_an_epoch_and_fine_between_epochs(change: dict[str, Any]) -> None:
    usual = {"dataset": range(10), "num_replicas": 1, "rank": 0, "global_batch_size": 4}
    before = ElasticBatchSampler(**usual)
    after = ElasticBatchSampler(**usual | change)
    after.load_state_dict(before.state_dict())
    before.advance()
    with pytest.raises(ValueError, match="cannot go on 4 samples into epoch 0"):
        after.load_state_dict(before.state_dict())


def test_two_samplers_that_step_together_draw_each_order_once(monkeypatch: pytest.MonkeyPatch) -> None:
    drawn: list[int] = []
    randperm = torch.randperm

    def counted(length: int, **options: Any) -> Tensor:
        drawn.append(length)
        return randperm(length, **options)

    monkeypatch.setattr(torch, "randperm", counted)
    samplers = [ElasticBatchSampler(range(length), 1, 0, global_batch_size=2) for length in (12, 14)]
    for _ in zip(*(sampler.global_batches(iter(sampler)) for sampler in samplers), strict=False):
        pass
    assert drawn == [12, 14]


def test_torchdatas_loader_is_refused_its_state_and_goes_on_by_the_samplers(tmp_path: Path) -> None:
    from torchdata.stateful_dataloader import StatefulDataLoader  # which warns as it is imported

    def loading(sampler: ElasticBatchSampler) -> Any:
        return StatefulDataLoader(range(40), batch_sampler=sampler)

    (sampler,), (other,) = samplers(40, 1, global_batch_size=4), samplers(40, 1, global_batch_size=4)
    loader = loading(sampler)
    for _, batch in zip(range(5), sampler.global_batches(loader), strict=False):
        list(batch)
    other.load_state_dict(sampler.state_dict())
    resumed = [batch.indices for batch in other.global_batches(loading(other))]
    assert len(resumed) == 5
    again = loading(other)
    again.load_state_dict(loader.state_dict())
    with pytest.raises(ValueError, match="a loader has no state of its own"):
        next(other.global_batches(again))
    with pytest.raises(
        ValueError, match=r"state\['loader'\] is a loader over a sampler or stream of dlr.data"
    ):
        Checkpointer(tmp_path, {"loader": loader, "sampler": sampler})


class Fsdp2:
    """As torch's FSDPModule."""

    def __init__(self) -> None:
        self.synchronizes = True

    def set_requires_gradient_sync(self, requires_gradient_sync: bool, *, recurse: bool = True) -> None:
        self.synchronizes = requires_gradient_sync


def test_fsdp2_averages_gradients_with_the_last_micro_batch_alone() -> None:
    model = Fsdp2()
    for last in (False, True):
        with MicroBatch([1], 1.0, last=last).accumulate(model):  # type: ignore[arg-type]
            assert model.synchronizes is last
        assert model.synchronizes
    with pytest.raises(KeyError), MicroBatch([1], 1.0, last=False).accumulate(model):  # type: ignore[arg-type]
        raise KeyError
    assert model.synchronizes
