"""Savers agree on who writes what, at a cost that is linear in their number."""

from __future__ import annotations

import sys
from collections import Counter
from collections.abc import Collection, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dlr.checkpoint import sharing, storage
from dlr.checkpoint.files import LocalFiles, files_at
from dlr.checkpoint.plan import Piece, Plans, divide, encode_plan, own_name
from dlr.checkpoint.sharing import Digest, SaveError, Savers

pytestmark = pytest.mark.real

FOLDER = ""
OPENED: Counter[str] = Counter()


def count(event: str, arguments: tuple[object, ...]) -> None:
    if FOLDER and event in ("open", "os.scandir", "os.listdir") and str(arguments[0]).startswith(FOLDER):
        OPENED[event] += 1


sys.addaudithook(count)


@contextmanager
def counted(folder: Path) -> Iterator[Counter[str]]:
    global FOLDER
    OPENED.clear()
    FOLDER = str(folder)
    yield OPENED
    FOLDER = ""


def plan(rank: int, ranks: int, own_values: bool) -> list[Piece]:
    """A rank of FSDP: parts of large tensors, a small one that all have, and perhaps one of its own."""
    parts = [Piece(f"layer-{n}", "bfloat16", (8, 64), (8 * ranks, 64), (8 * rank, 0), 1024, rank + n)
             for n in range(8)]  # fmt: skip
    return [
        *parts,
        Piece("norm", "float32", (64,), (64,), (0,), 256, 7),
        Piece("experts", "float32", (4,), (4,), (0,), 16, rank if own_values else 5),
    ]


def digests_of(rank: int) -> object:
    def digests(names: Collection[str]) -> dict[str, Digest | None]:
        return {name: [float(rank)] for name in names}

    return digests


def agree(folder: Path, ranks: int, *, own_values: bool) -> list[list[Piece]]:
    """What each rank writes, as all agree on it one after the other."""
    files = files_at(folder)
    savers = [Savers(files, "working", rank, ranks) for rank in range(ranks)]
    plans = [plan(rank, ranks, own_values) for rank in range(ranks)]
    for saver, pieces in zip(savers, plans, strict=True):
        saver.announce(pieces)
        if own_values:  # they are asked for while rank 0 waits for them
            saver.tell(sharing._DIGEST, b'{"experts": [%d]}' % saver._rank)
    shares = savers[0].lead(digests_of(0))  # type: ignore[arg-type]
    followed = [
        saver.follow(plans[rank], digests_of(rank))  # type: ignore[arg-type]
        for rank, saver in enumerate(savers)
        if rank
    ]
    written = [share.of(plans[rank], rank) for rank, share in enumerate(shares.of_ranks)]
    assert written[1:] == followed
    return written


@pytest.mark.parametrize("own_values", [False, True])
@pytest.mark.parametrize("ranks", [512, 2048])
def test_files_opened_and_bytes_read_are_linear_in_the_number_of_savers(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, *, ranks: int, own_values: bool
) -> None:
    read, real = [], LocalFiles.read

    def read_and_count(files: LocalFiles, name: str, start: int = 0, length: int | None = None) -> bytes:
        data = real(files, name, start, length)
        read.append(len(data))
        return data

    def write(files: LocalFiles, name: str, data: bytes) -> None:
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_bytes(data)

    monkeypatch.setattr(LocalFiles, "read", read_and_count)
    monkeypatch.setattr(LocalFiles, "write", write)
    with counted(tmp_path) as opened:
        agree(tmp_path, ranks, own_values=own_values)
    plan_bytes = len(str(plan(0, ranks, own_values)))
    assert opened["open"] <= 8 * ranks, "a plan, a share, a digest: written and read"
    assert opened["os.scandir"] + opened["os.listdir"] <= 2 * ranks
    assert sum(read) <= 2 * ranks * plan_bytes


@given(ranks=st.integers(1, 6), own_values=st.booleans())
@settings(deadline=None, max_examples=30)
def test_each_saver_writes_what_all_plans_together_say(
    tmp_path_factory: pytest.TempPathFactory, ranks: int, own_values: bool
) -> None:
    written = agree(tmp_path_factory.mktemp("savers"), ranks, own_values=own_values)
    plans = [plan(rank, ranks, own_values) for rank in range(ranks)]
    names = [piece.name for of_rank in written for piece in of_rank]
    if own_values and ranks > 1:
        assert sorted(name for name in names if "experts" in name) == sorted(
            own_name("experts", rank) for rank in range(ranks)
        )
    else:
        assert all(set(mine) <= set(plans[rank]) for rank, mine in enumerate(written))
        assert sorted(names) == sorted(piece.name for of_rank in divide(plans) for piece in of_rank)
    assert len([name for name in names if name == "norm"]) == 1
    assert len([name for name in names if name.startswith("layer")]) == 8 * ranks


def test_a_rank_that_gives_up_is_passed_on_by_rank_0_in_its_own_words(tmp_path: Path) -> None:
    files = files_at(tmp_path)
    savers = [Savers(files, storage.try_folder(7, "a"), rank, 3) for rank in range(3)]
    storage.give_up(files, 7, "a", 2, "its disk is full")
    with pytest.raises(SaveError, match="rank 2 has not saved it: its disk is full") as error:
        savers[0].lead(digests_of(0))  # type: ignore[arg-type]
    storage.give_up(files, 7, "a", 0, str(error.value))
    with pytest.raises(SaveError, match="rank 2 has not saved it: its disk is full"):
        savers[1].follow([], digests_of(1))  # type: ignore[arg-type]


def test_only_what_several_ranks_have_is_read_in_full_by_rank_0() -> None:
    plans = [plan(rank, 3, own_values=False) for rank in range(3)]
    read = Plans.read(map(encode_plan, plans))
    assert [{piece.name for piece in of_rank.values()} for of_rank in read.contested] == [
        {"norm", "experts"}
    ] * 3
    assert [list(numbers) for numbers in read.alone] == [list(range(8))] * 3
    assert read.loads == (8 * 1024,) * 3
    everything = Plans.read(map(encode_plan, plans), everything=True)
    assert [list(of_rank.values()) for of_rank in everything.contested] == plans
    assert everything.loads == (0, 0, 0)
