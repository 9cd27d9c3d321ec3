"""`.metadata`, joined from the ranks' reports, is what torch would have pickled of all of them."""

from __future__ import annotations

import pickle
import tracemalloc
from pathlib import Path

import torch
from hypothesis import given
from hypothesis import strategies as st
from torch.distributed.checkpoint.filesystem import _StorageInfo
from torch.distributed.checkpoint.metadata import MetadataIndex, StorageMeta
from torch.distributed.checkpoint.storage import WriteResult

from dlr.checkpoint.dcp import metadata
from dlr.checkpoint.folder_pickles import read_pickle
from dlr.checkpoint.joined import Parts, encode_part
from dlr.checkpoint.plan import Piece
from dlr.checkpoint.storage import METADATA, File


def results_of(pieces: list[Piece], rank: int) -> list[WriteResult]:
    return [
        WriteResult(
            MetadataIndex(piece.name, torch.Size(piece.global_offset)),
            piece.nbytes,
            _StorageInfo(f"__{rank}_0.distcp", number, piece.nbytes),
        )
        for number, piece in enumerate(pieces)
    ]


def check(ranks: list[list[Piece]], leaves: list[str]) -> int:
    """Compare them, and return the size of what was joined."""
    paths = {name: ("model", name, 0) for name in leaves}
    expected = metadata((piece for pieces in ranks for piece in pieces), leaves, paths)
    expected.storage_data = {}
    expected.storage_meta = StorageMeta(checkpoint_id=Path("/data/run/step-1"))
    outline = metadata((), leaves, paths)
    outline.storage_meta = expected.storage_meta
    reports = []
    for rank, pieces in enumerate(ranks):
        results = results_of(pieces, rank)
        if rank == 0:
            results += [WriteResult(MetadataIndex(it), 9, _StorageInfo("a/b%b", 2**40, 9)) for it in leaves]
        expected.storage_data |= {each.index: each.storage_data for each in results}
        reports.append(encode_part(pieces, results, [File(f"__{rank}_0.distcp", 1, 2)]))
    data = Parts(reports).encode(outline)
    assert pickle.loads(data) == expected
    assert read_pickle(data, METADATA) == expected
    sizes = [
        entry.chunks[0].sizes for entry in expected.state_dict_metadata.values() if hasattr(entry, "chunks")
    ]
    assert all(isinstance(size, torch.Size) for size in sizes)
    return len(data)


pieces = st.builds(
    Piece,
    st.sampled_from(["a", "größe", "\0dlr", "offsets", "model.0.weight"]),
    st.sampled_from(["float32", "bfloat16", "uint8"]),
    st.tuples(st.integers(0, 300), st.integers(0, 70_000)),
    st.just((9, 9)),
    st.tuples(st.integers(0, 300), st.integers(0, 2**40)),
    st.integers(0, 2**40),
    st.just(0),
)


@given(
    st.lists(st.lists(pieces, max_size=4), max_size=4),
    st.lists(st.sampled_from(["x", "sizes", "y.0", "a"]), unique=True),
)
def test_joined_metadata_is_what_torch_would_have_pickled(
    ranks: list[list[Piece]], leaves: list[str]
) -> None:
    check(ranks, leaves)


def sharded(ranks: int, tensors: int) -> list[list[Piece]]:
    """What ranks have of tensors that are divided among all."""
    return [
        [Piece(f"layer-{n}", "float32", (1, 4), (ranks, 4), (rank, 0), 16, n) for n in range(tensors)]
        for rank in range(ranks)
    ]


def test_thousands_of_tensors_outgrow_no_place_of_the_memo() -> None:
    size = check(ranks := sharded(3, 2_500), ["step"])
    whole = pickle.dumps(metadata((piece for of_rank in ranks for piece in of_rank), ["step"]))
    assert size < 2 * len(whole)


def test_a_number_of_a_place_may_be_that_of_a_percent_sign() -> None:
    for tensors in range(ord("%") + 1):
        check(sharded(1, tensors), [])


def test_rank_0_takes_no_more_memory_than_three_times_what_it_writes() -> None:
    reports = [encode_part(pieces, results_of(pieces, 0), []) for pieces in sharded(100, 100)]
    tracemalloc.start()
    try:
        data = Parts(reports).encode(metadata((), []))
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert peak < 3 * len(data)
