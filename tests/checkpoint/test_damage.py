"""One bit flipped, anywhere: it is found, and what is older and whole is used instead.

DLR_FLIPS says how many; a few by default.
"""

from __future__ import annotations

import os
import random
from pathlib import Path

import pytest

from agent.slots.format import CommitWord, Mark
from agent.slots.slot import DamagedError
from dlr.checkpoint.choosing import choose
from dlr.checkpoint.files import files_at
from dlr.checkpoint.own_slot import own_slot
from dlr.checkpoint.saver import persist
from dlr.checkpoint.state import restore
from dlr.checkpoint.storage import StorageError
from dlr.checkpoint.surroundings import Surroundings
from tests.checkpoint.states import assert_whole, load_stored, request, save, saved, state

FLIPS = int(os.environ.get("DLR_FLIPS", "60")) // 2
HERE = Surroundings(0, 1, "", "a")


def flip(data: bytearray | memoryview, bit: int) -> None:
    data[bit // 8] ^= 1 << bit % 8


def test_a_bit_in_a_slot() -> None:
    mark, chance, found = Mark(3, 7, 0, 1), random.Random(3), 0
    slot = saved(state(7), mark)
    used = slot.header().slot_bytes
    whole = bytes(slot.bytes(0, used))
    for number in range(FLIPS):
        bit = chance.randrange(64 * 8) if number % 3 == 0 else chance.randrange(4096 * 8, used * 8)
        flip(slot.bytes(0, used), bit)
        loaded = state(-1)
        try:
            with own_slot(slot.path, mark) as own:
                restore(loaded, own.values, own.rng, own.parts, own.fill)
        except DamagedError:
            found += 1
            assert slot.mark is None or slot.mark != mark, "nobody takes it for a checkpoint"
        else:
            assert_whole(loaded, 7)  # the bit was in between two tensors
        slot.bytes(0, used)[:] = whole
    assert found > FLIPS * 0.8


def test_a_bit_in_storage(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    chance, found = random.Random(4), 0
    for step in (1, 2):
        save(tmp_path, step)
    files = sorted(path for path in (tmp_path / "step-2").rglob("*") if path.is_file())
    assert len(files) == 3
    for number in range(FLIPS):
        path = files[number % len(files)]
        whole = path.read_bytes()
        data = bytearray(whole)
        flip(data, chance.randrange(len(data) * 8))
        path.write_bytes(data)
        caplog.clear()
        manifest = choose(files_at(tmp_path), HERE)
        assert manifest is not None
        if manifest.step == 1:
            found += 1
            assert "is damaged, and an older one is used: step-2: " in caplog.text
        load_stored(loaded := state(-1), tmp_path, manifest.step)
        assert_whole(loaded, manifest.step)
        path.write_bytes(whole)
    assert found > FLIPS * 0.95


def test_nothing_but_damage_is_not_taken_for_a_fresh_start(tmp_path: Path) -> None:
    save(tmp_path, 1)
    (tmp_path / "step-1" / ".metadata").write_bytes(b"")
    with pytest.raises(
        StorageError, match=r"no checkpoint in .* is whole \(step-1: .metadata is not what was written"
    ):
        choose(files_at(tmp_path), HERE)


def test_a_slot_that_was_damaged_before_it_is_persisted_never_reaches_the_storage(tmp_path: Path) -> None:
    slot = saved(state(1), mark := Mark(1, 1, 0, 1))
    flip(slot.bytes(4096, 4104), 5)
    with pytest.raises(DamagedError, match="is not what was written"):
        persist(request(slot, mark, tmp_path), lambda: None)
    assert choose(files_at(tmp_path), HERE) is None
    assert slot.commit_word is CommitWord.SUMMED
