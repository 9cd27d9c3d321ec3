"""ElasticStream: each sample once an epoch, in one order, through any changes of the world."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator, Sequence
from itertools import islice
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.utils.data import DataLoader

from dlr.data import ElasticBatchSampler, ElasticStream
from tests.sdk.test_data_groups import FILES, LINES, read, stream

few = settings(max_examples=60, deadline=None)
LENGTH = sum(FILES.values())


def steps(ranks: Sequence[ElasticStream]) -> Iterator[list[str]]:
    """The samples that the ranks together learn from, step by step through the rest of the epoch."""
    for step in zip(*(rank.global_batches(iter(rank)) for rank in ranks), strict=True):
        micro_batches = [list(batch) for batch in step]
        yield sorted(
            sample for rank in micro_batches for micro in rank if micro.weight for sample in micro.data
        )


@given(
    st.lists(st.tuples(st.integers(1, 9), st.none() | st.integers(1, 4), st.integers(0, 4)), max_size=6),
    st.booleans(),
    st.sampled_from([1, 2, 4, 8]),
)
@few
def test_steps_are_those_of_an_undisturbed_run_whatever_worlds_follow_each_other(
    history: list[tuple[int, int | None, int]], shuffle: bool, lanes: int
) -> None:
    options: dict[str, Any] = {"shuffle": shuffle, "lanes": lanes}
    undisturbed = list(steps([stream(**options)]))
    assert sorted(sample for step in undisturbed for sample in step) == LINES
    done: list[list[str]] = []
    state: dict[str, int] | None = None
    for world, micro_batch_size, until_killed in [*history, (1, None, LENGTH)]:
        ranks = [stream(rank, world, micro_batch_size=micro_batch_size, **options) for rank in range(world)]
        for rank in ranks:
            if state is not None:
                rank.load_state_dict(json.loads(json.dumps(state)))
        if ranks[0].epoch > 0:
            break
        done += islice(steps(ranks), until_killed)
        state = ranks[0].state_dict()
        assert all(rank.state_dict() == state for rank in ranks)
    assert done == undisturbed


def test_epochs_have_orders_of_their_own_and_seeds_as_well() -> None:
    one = stream()
    orders = [list(steps([one])), list(steps([one])), list(steps([stream(seed=1)]))]
    assert one.epoch == 2
    assert len({json.dumps(order) for order in orders}) == 3
    assert next(steps([stream(shuffle=False, lanes=1)])) == [
        *(f"file-0/{number:02}" for number in range(7)),
        "file-2/00",
    ]


@pytest.mark.real
def test_workers_of_a_dataloader_give_the_same_batches_in_the_same_order() -> None:
    expected = [batch for batch in stream(micro_batch_size=3)]
    one = stream(micro_batch_size=3)
    loader = DataLoader(one, batch_size=None, num_workers=2)
    loaded = [micro.data for batch in one.global_batches(loader) for micro in batch]
    assert loaded == expected
    assert (one.epoch, one.consumed) == (1, 0)


def test_a_rank_opens_its_own_files_and_each_of_them_once() -> None:
    opened: list[tuple[int, str]] = []

    def noting(rank: int) -> Any:
        def read(file: str, start: int) -> Iterator[int]:
            opened.append((rank, file))
            return iter(range(start, 100))

        return read

    files = [f"file-{number}" for number in range(16)]
    ranks = [
        ElasticStream(files, noting(rank), 4, rank, global_batch_size=32, collate=list) for rank in range(4)
    ]
    opened.clear()  # of counting
    for rank in ranks:
        assert sum(len(batch) for batch in rank) == 400
    assert len(opened) == 16
    assert {file for _, file in opened} == set(files)


@pytest.mark.parametrize(
    ("difference", "word"),
    [
        ({"seed": 1}, "seed 0"),
        ({"lanes": 4}, "lanes 2"),
        ({"window": 3}, "window 4"),
        ({"shuffle": False}, "shuffle"),
    ],
)
def test_a_state_from_within_an_epoch_of_another_order_is_refused(
    difference: dict[str, Any], word: str
) -> None:
    before = stream(lanes=2)
    next(steps([before]))
    with pytest.raises(ValueError, match=f"8 samples into epoch 0: its order was drawn with .*{word}"):
        stream(**{"lanes": 2, **difference}).load_state_dict(before.state_dict())


def test_files_of_another_size_are_counted_again_and_others_only_once(tmp_path: Path) -> None:
    files, index, counted = [tmp_path / name for name in "abc"], tmp_path / "sizes.json", []
    for file in files:
        file.write_text("1\n2\n")

    def lines(file: str, start: int) -> Iterator[str]:
        counted.append(Path(file).name)
        with Path(file).open() as opened:
            yield from islice(opened, start, None)

    def sizes() -> list[int]:
        counted.clear()
        return ElasticStream(files, lines, 1, 0, global_batch_size=2, index=index).sizes

    assert (sizes(), counted) == ([2, 2, 2], ["a", "b", "c"])
    assert (sizes(), counted) == ([2, 2, 2], [])
    files[1].write_text("1\n2\n3\n")
    assert (sizes(), counted) == ([2, 3, 2], ["b"])
    for damaged in ("{ torn", "[]", f'{{"{files[0]}": 7}}'):
        index.write_text(damaged)
        assert (sizes(), counted) == ([2, 3, 2], ["a", "b", "c"])


def test_an_index_that_cannot_be_kept_ends_no_training(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    index = tmp_path / "no such folder" / "sizes.json"
    assert stream(index=index).sizes == list(FILES.values())
    assert "cannot be kept in the index" in caplog.text and str(index) in caplog.text


def test_a_stream_and_a_sampler_refuse_each_other_s_state() -> None:
    one = stream()
    other = ElasticBatchSampler(range(one.length), 1, 0, global_batch_size=8)
    for from_one, into in ((one, other), (other, one)):
        from_one.advance()
        with pytest.raises(ValueError, match=r"its order was drawn with .*files"):
            into.load_state_dict(from_one.state_dict())


def test_a_file_that_has_become_shorter_is_named() -> None:
    one = stream(shuffle=False, lanes=1)
    with pytest.MonkeyPatch.context() as patch:
        patch.setitem(FILES, "file-2", 3)
        with pytest.raises(ValueError, match="file-2 ends after 3 samples, where it had 12"):
            list(one)


def test_a_read_that_does_not_begin_where_it_is_told_is_named() -> None:
    files = ["a", "b"]
    one = ElasticStream(
        files, lambda file, start: range(10), 1, 0, False, global_batch_size=2, lanes=1, collate=list
    )
    one.load_state_dict({**one.state_dict(), "consumed": 4})
    with pytest.raises(ValueError, match=r"goes on after the 10 samples.*did not begin with sample 4"):
        list(one)


def test_a_loader_that_ends_before_the_epoch_is_named() -> None:
    one = stream()
    with pytest.raises(ValueError, match="the loader ended before the epoch"):
        list(steps_of_one(one, iter([["file-0/00"]])))


def steps_of_one(one: ElasticStream, loader: Iterator[Any]) -> Iterator[list[Any]]:
    for batch in one.global_batches(loader):
        yield list(batch)


def test_what_has_no_length_or_cannot_be_read_again_is_refused(tmp_path: Path) -> None:
    with pytest.raises(TypeError, match="needs a list of files, not generator: a source of unknown"):
        ElasticStream((file for file in FILES), read, 1, 0, global_batch_size=8)  # type: ignore[arg-type]
    with pytest.raises(TypeError, match="not str"):
        ElasticStream("file-0", read, 1, 0, global_batch_size=8)
    os.mkfifo(tmp_path / "pipe")
    with pytest.raises(ValueError, match="pipe is a pipe or a device"):
        ElasticStream([tmp_path / "pipe"], read, 1, 0, global_batch_size=8)
    with pytest.raises(ValueError, match="no step in an epoch"):
        ElasticStream([], read, 1, 0, global_batch_size=8)
    with pytest.raises(ValueError, match="lanes 3, global_batch_size 8"):
        stream(lanes=3)


@pytest.mark.parametrize(
    "options", [{"batch_size": 2}, {"batch_size": None, "num_workers": 1, "persistent_workers": True}]
)
def test_a_loader_that_would_give_other_batches_is_refused(options: dict[str, Any]) -> None:
    one = stream()
    with pytest.raises(ValueError, match="the DataLoader needs"):
        next(one.global_batches(DataLoader(one, **options)))
