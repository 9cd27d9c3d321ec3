"""A Checkpointer whose process lives from one start of the training processes into the next."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from agent.slots.slot import Slot
from crds.checkpoint_files import KeptIn
from dlr.checkpoint import leaving, loading
from dlr.checkpoint.checkpointer import Checkpointer
from tests.checkpoint import states

SLOT_BYTES = 1 << 20


class Start:
    """What the agent gives one start after the other."""

    def __init__(self, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        self._folder, self._monkeypatch = folder, monkeypatch
        self.slots = [Slot.create("test", SLOT_BYTES) for _ in range(3)]

    def begin(self, round_: int, resumed: Slot | None = None) -> None:
        slots = sorted(self.slots, key=lambda slot: slot is not resumed)
        resume = None
        if resumed is not None:
            assert resumed.mark is not None
            mark = resumed.mark
            resume = {"round": mark.round, "step": mark.step, "world_size": 1, "slot": resumed.path}
        folder = self._folder / f"round-{round_}"
        folder.mkdir()
        states.tell(self._monkeypatch, folder, *slots, round=round_, resume=resume)

    def of_step(self, step: int) -> Slot:
        return next(slot for slot in self.slots if slot.mark is not None and slot.mark.step == step)


@pytest.fixture
def start(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Start:
    return Start(tmp_path, monkeypatch)


def order(monkeypatch: pytest.MonkeyPatch, *, stays: bool) -> None:
    monkeypatch.setattr(leaving, "boundary", lambda step: KeptIn.MEMORY.name.lower())
    monkeypatch.setattr(leaving, "stays", lambda: stays)


def go_on(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(leaving, "boundary", lambda step: None)


def test_nothing_is_saved_between_the_end_of_a_round_and_the_next(start: Start, tmp_path: Path) -> None:
    """What the script does then may come after half a step."""
    start.begin(1)
    made = states.state(0)
    ckpt = Checkpointer(tmp_path / "storage", made, every=1, persist_every=2)
    assert ckpt.load() is None
    states.set_step(made, 1)
    assert not ckpt.step(1)
    ckpt.rest()
    states.set_step(made, 2)
    assert not ckpt.step(2)
    start.begin(2, start.of_step(1))
    ckpt.begin_again()
    assert ckpt.load() == 1
    states.assert_whole(made, 1)
    assert states.steps_in(tmp_path / "storage") == []
    states.set_step(made, 2)
    assert not ckpt.step(2)
    ckpt.close()
    assert states.steps_in(tmp_path / "storage") == [2]


@pytest.mark.parametrize("changes", [False, True])
def test_a_process_that_stays_saves_the_step_and_loads_what_it_has_changed_since(
    start: Start, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, changes: bool
) -> None:
    start.begin(1)
    made = states.state(0)
    ckpt = Checkpointer(tmp_path / "storage", made, every=100, persist_every=None)
    ckpt.load()
    ckpt.lives_on = True
    order(monkeypatch, stays=True)
    states.set_step(made, 7)
    assert not ckpt.step(7) and ckpt.stays
    if changes:
        states.set_step(made, 8)
    ckpt.rest()
    restored: list[Any] = []
    restore = loading.restore
    monkeypatch.setattr(loading, "restore", lambda *args, **kw: (restored.append(args), restore(*args, **kw)))
    start.begin(2, start.of_step(7))
    go_on(monkeypatch)
    ckpt.begin_again()
    assert ckpt.load() == 7 and not ckpt.stays
    assert bool(restored) is changes
    states.assert_whole(made, 7)
    states.set_step(made, 8)
    assert not ckpt.step(8)
    ckpt.close()


@pytest.mark.parametrize(("lives_on", "stays"), [(False, True), (True, False)])
def test_who_cannot_live_on_or_is_not_to_leaves(
    start: Start, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, lives_on: bool, stays: bool
) -> None:
    start.begin(1)
    made = states.state(0)
    ckpt = Checkpointer(tmp_path / "storage", made, every=100, persist_every=None)
    ckpt.load()
    ckpt.lives_on = lives_on
    order(monkeypatch, stays=stays)
    states.set_step(made, 7)
    assert ckpt.step(7) and not ckpt.stays
    assert start.of_step(7).mark is not None
