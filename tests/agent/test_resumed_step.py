"""A start of a script that tells nothing goes on from the step after which its checkpoint was saved."""

from __future__ import annotations

import io
import mmap
import os
import pickle
import shutil
import struct
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch.optim.optimizer import register_optimizer_step_post_hook

from agent.monitor.saved_steps import (
    MOST_NOTES,
    NOTES_KEPT,
    FileId,
    Notes,
    Position,
    common_file_in,
    gathered,
)
from agent.warm.resumed_step import ResumedStep, follow_files
from agent.warm.step_counter import counting_hook, newest_of
from crds.progress_record import COUNTED, FIRST_COUNTED, PROGRESS_FORMAT, START_UNKNOWN

SAVE, LOAD = torch.save, torch.load


class Life:
    """One start of a process, in this one."""

    def __init__(self, folder: Path, rank: int = 0) -> None:
        record = folder / f"step.{rank}"
        record.write_bytes(bytes(struct.calcsize(PROGRESS_FORMAT)))
        with record.open("r+b") as file:
            self.record = memoryview(mmap.mmap(file.fileno(), 0))
        resumed = ResumedStep(record, lambda: newest_of(self.record))
        self._hook = register_optimizer_step_post_hook(counting_hook(self.record, resumed.position))
        self._stop = follow_files(resumed)
        self.optimizer = torch.optim.SGD([torch.nn.Parameter(torch.ones(2))], lr=0.01)

    def train(self, steps: int) -> None:
        self.optimizer.param_groups[0]["params"][0].grad = torch.ones(2)
        for _ in range(steps):
            self.optimizer.step()

    def end(self) -> None:
        self._hook.remove()
        self._stop()
        for module in (torch, torch.serialization):
            module.save, module.load = SAVE, LOAD  # type: ignore[attr-defined]

    @property
    def counted(self) -> tuple[int, int, bool]:
        """The first step, the newest, and whether it is known that they are."""
        words = self.record.cast("q")
        return words[FIRST_COUNTED], words[COUNTED], not words[START_UNKNOWN]


Begin = Callable[[], Life]


@pytest.fixture
def begin(tmp_path: Path) -> Iterator[Begin]:
    """Begins a life after another, as an agent does: with the notes of those before."""
    folder, lives = tmp_path / "agent", list[Life]()
    folder.mkdir()

    def begun() -> Life:
        if lives:
            lives[-1].end()
        Notes(gathered(folder).files, new=not lives).write(common_file_in(folder))
        lives.append(Life(folder))
        return lives[-1]

    yield begun
    lives[-1].end()


def test_a_start_goes_on_from_the_step_of_the_file_that_it_loads(begin: Begin, tmp_path: Path) -> None:
    """Which was written aside and renamed, as scripts do."""
    first = begin()
    first.train(5)
    torch.save({"epoch": 1}, tmp_path / "new")
    (tmp_path / "new").replace(tmp_path / "last")
    first.train(3)
    assert first.counted == (1, 8, True)
    second = begin()
    assert torch.load(tmp_path / "last") == {"epoch": 1}
    second.train(2)
    assert second.counted == (6, 7, True)
    torch.save({"epoch": 2}, tmp_path / "last")
    third = begin()
    torch.load(str(tmp_path / "last"))
    third.train(1)
    assert third.counted == (8, 8, True)


def test_an_earlier_file_of_several_is_its_own_step(begin: Begin, tmp_path: Path) -> None:
    first = begin()
    for epoch in range(40):
        first.train(2)
        torch.save(epoch, tmp_path / f"epoch-{epoch}")
    second = begin()
    torch.load(tmp_path / "epoch-30")
    second.train(1)
    assert second.counted == (63, 63, True)
    third = begin()
    torch.load(tmp_path / f"epoch-{39 - NOTES_KEPT}")
    third.train(1)
    assert third.counted == (1, 1, False), f"of each process, {NOTES_KEPT} are kept"


def test_a_start_that_loads_nothing_is_known_only_of_a_new_job(begin: Begin, tmp_path: Path) -> None:
    first = begin()
    first.train(1)
    assert first.counted == (1, 1, True)
    second = begin()
    second.train(4)
    assert second.counted == (1, 4, False), "it may have loaded something that nobody has seen"
    torch.save("state", tmp_path / "last")
    third = begin()
    torch.load(tmp_path / "last")
    third.train(1)
    assert third.counted == (5, 5, False), "the same numbers, which are as little known"


def test_files_that_contradict_each_other_tell_nothing(begin: Begin, tmp_path: Path) -> None:
    first = begin()
    first.train(1)
    torch.save("best", tmp_path / "best")
    first.train(1)
    torch.save("last", tmp_path / "last")
    second = begin()
    torch.load(tmp_path / "best")
    torch.load(tmp_path / "last")
    second.train(1)
    assert second.counted == (1, 1, False)


def changed(file: Path) -> None:
    file.write_bytes(file.read_bytes())
    os.utime(file, ns=(1, 1))


def copied(file: Path) -> None:
    shutil.copy(file, file.with_name("copy"))
    file.with_name("copy").replace(file)


@pytest.mark.parametrize("change", [changed, copied])
def test_a_file_that_was_written_since_tells_nothing(
    begin: Begin, tmp_path: Path, change: Callable[[Path], None]
) -> None:
    first = begin()
    first.train(3)
    torch.save("state", tmp_path / "last")
    change(tmp_path / "last")
    second = begin()
    torch.load(tmp_path / "last")
    second.train(1)
    assert second.counted == (1, 1, False)


def test_what_is_no_checkpoint_of_the_state_of_now_tells_nothing(begin: Begin, tmp_path: Path) -> None:
    first = begin()
    torch.save("vocabulary", tmp_path / "before the first step")
    first.train(3)
    aside = threading.Thread(target=torch.save, args=("a copy of some step", tmp_path / "by a thread"))
    aside.start()
    aside.join()
    torch.save(torch.ones(1), tmp_path / "one tensor")
    torch.save("", io.BytesIO())
    second = begin()
    for name in ("before the first step", "by a thread", "one tensor"):
        torch.load(tmp_path / name)
    second.train(1)
    assert second.counted == (1, 1, False)


def test_files_that_are_open_count_too(begin: Begin, tmp_path: Path) -> None:
    first = begin()
    first.train(3)
    with (tmp_path / "last").open("wb") as file:
        torch.save("state", file)
    second = begin()
    with (tmp_path / "last").open("rb") as file:
        torch.load(file)
    second.train(1)
    assert second.counted == (4, 4, True)


def test_torchs_functions_stay_what_they_are(begin: Begin, tmp_path: Path) -> None:
    begin()
    assert pickle.loads(pickle.dumps(torch.save)) is torch.save
    torch.save(obj={"a": 1}, f=str(tmp_path / "x"))
    assert torch.load(f=tmp_path / "x", weights_only=True) == {"a": 1}
    with pytest.raises(FileNotFoundError):
        torch.load(tmp_path / "no such file")
    with pytest.raises(TypeError):
        torch.save()
    with pytest.raises(RuntimeError, match="directory"):
        torch.save(1, tmp_path / "no such folder" / "x")


def test_notes_that_cannot_be_written_disturb_nobody(begin: Begin, tmp_path: Path) -> None:
    life = begin()
    life.train(1)
    shutil.rmtree(tmp_path / "agent")
    torch.save("state", tmp_path / "x")
    assert torch.load(tmp_path / "x") == "state"


numbers = st.integers(0, 2**60)


@given(
    st.dictionaries(
        st.builds(FileId, numbers, numbers, numbers), st.builds(Position, numbers, st.booleans()), max_size=9
    ),
    st.booleans(),
)
def test_notes_are_read_as_they_were_written(files: dict[FileId, Position], new: bool) -> None:
    assert Notes.parse(str(Notes(files, new))) == Notes(files, new)


def test_notes_are_bounded_and_the_newest_stay(tmp_path: Path) -> None:
    for rank in range(2):
        files = {FileId(rank, 1, 2 * number + rank): Position(number) for number in range(MOST_NOTES)}
        Notes(files).write(tmp_path / f"saved.step.{rank}")
    (tmp_path / "saved.broken").write_text("1 2 3\nnonsense\n")
    found = gathered(tmp_path)
    assert len(found.files) == MOST_NOTES
    assert min(file.changed_ns for file in found.files) == MOST_NOTES
