"""SIGKILL at random moments of copying and persisting: what can be seen is whole, and none is lost.

DLR_KILLS says how many; a few by default.
"""

from __future__ import annotations

import mmap
import os
import random
import signal
import struct
import time
from pathlib import Path

import pytest
import torch

from agent.slots.format import Mark
from agent.slots.slot import Slot
from dlr.checkpoint import storage
from dlr.checkpoint.choosing import choose
from dlr.checkpoint.files import files_at
from dlr.checkpoint.memory import Writer, private_slot
from dlr.checkpoint.saver import persist
from dlr.checkpoint.state import capture
from dlr.checkpoint.surroundings import Surroundings
from tests.checkpoint.states import (
    assert_whole,
    fork,
    load,
    load_stored,
    request,
    saved,
    set_step,
    state,
    steps_in,
)

pytestmark = pytest.mark.real

KILLS = int(os.environ.get("DLR_KILLS", "40")) // 2


class Told:
    """A number that a process leaves behind."""

    def __init__(self) -> None:
        self._memory = mmap.mmap(-1, 8)

    def set(self, value: int) -> None:
        self._memory[:8] = struct.pack("q", value)

    def get(self) -> int:
        return int(struct.unpack("q", self._memory[:8])[0])


def kill(pid: int, told: Told, at_least: int, after_seconds: float) -> None:
    """Kill it some time after it has told that number, unless it fails before."""
    deadline = time.monotonic() + 300
    while told.get() < at_least:
        assert time.monotonic() < deadline, "it did not come so far"
        time.sleep(0.001)
    time.sleep(after_seconds)
    os.kill(pid, signal.SIGKILL)
    assert os.waitpid(pid, 0)[1] == signal.SIGKILL, "it failed by itself"


def test_killed_while_it_copies_the_newest_whole_slot_is_the_last_committed_or_a_later_one() -> None:
    torch.set_num_threads(1)
    chance, told, made = random.Random(1), Told(), state(0, 200_000)
    slots = [private_slot(capture(made)) for _ in range(3)]
    newest: Slot | None = None
    seen_inside = 0
    for number in range(KILLS):
        first = newest.mark.step + 1 if newest is not None and newest.mark is not None else 1

        def train(first: int = first, round: int = number + 1) -> None:
            writer = Writer([Slot.open(slot.path) for slot in slots])
            for step in range(first, 10**9):
                set_step(made, step)
                writer.save(Mark(round, step, 0, 1), capture(made))
                writer.wait()
                told.set(step - 1)  # it is committed: the next one has begun

        kill(fork(train), told, first, chance.uniform(0.0, 0.02))
        for slot in slots:
            seen_inside += slot.mark is None and newest is not None
            slot.sum_up()
        whole = [slot for slot in slots if slot.mark is not None]
        newest = max(whole, key=lambda slot: slot.mark or Mark(0, 0, 0, 0))
        assert newest.mark is not None and newest.mark.step >= told.get()
        for slot in whole:
            loaded = state(-1, 200_000)
            load(loaded, slot)
            assert slot.mark is not None
            assert_whole(loaded, slot.mark.step)
    print(f"{seen_inside} of {KILLS} kills met a copy")


def test_killed_while_it_persists_what_can_be_seen_is_whole_and_the_last_complete_stays(
    tmp_path: Path,
) -> None:
    torch.set_num_threads(1)
    chance, told, newest = random.Random(2), Told(), 0
    for number in range(KILLS):
        marks = [Mark(number, newest + 1 + i, 0, 1) for i in range(3)]
        slots = {mark.step: saved(state(mark.step), mark) for mark in marks}

        def save(marks: list[Mark] = marks, slots: dict[int, Slot] = slots) -> None:
            while True:
                for mark in marks:
                    persist(request(slots[mark.step], mark, tmp_path), lambda: None)
                    told.set(mark.step)

        kill(fork(save), told, newest + 1, chance.uniform(0.0, 0.1))
        for slot in slots.values():
            slot.close()
        files = files_at(tmp_path)
        for step in steps_in(tmp_path):
            manifest = storage.read_manifest(files, step)
            storage.verify(files, manifest, manifest.files)
        manifest = choose(files_at(tmp_path), Surroundings(0, 1, "", "a"))
        assert manifest is not None
        assert manifest.step >= told.get() or told.get() in steps_in(tmp_path)
        newest = manifest.step
        load_stored(loaded := state(-1), tmp_path, newest)
        assert_whole(loaded, newest)
