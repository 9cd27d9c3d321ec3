"""Savers agree on who writes what, at a cost that is linear in their number."""

from __future__ import annotations

import sys
from collections import Counter
from collections.abc import Collection, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from dlr.checkpoint import sharing
from dlr.checkpoint.files import LocalFiles, files_at
from dlr.checkpoint.plan import Piece, encode_plan
from dlr.checkpoint.sharing import PLAN, Digest, Savers

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
        saver.tell(PLAN, encode_plan(pieces))
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
