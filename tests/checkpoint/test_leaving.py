"""The end of a step, as a training process sees it."""

from __future__ import annotations

import gc
import struct
from pathlib import Path
from types import SimpleNamespace

import pytest

from crds.checkpoint_files import KeptIn
from crds.progress_record import (
    BOUNDARY,
    ENV_PROGRESS_FILE,
    EXIT_LEFT,
    GO_ON,
    GOES_ALONE,
    KEEPS_IN,
    ORDER,
    RECORD_BYTES,
    SPEAKS,
    hold_until,
    leave_at,
)
from dlr import progress
from dlr.checkpoint import leaving

NOW = 300.0


class Record:
    def __init__(self, path: Path) -> None:
        self.path = path
        path.write_bytes(bytes(RECORD_BYTES))

    def __getitem__(self, word: int) -> int:
        return int(struct.unpack_from("q", self.path.read_bytes(), 8 * word)[0])

    def __setitem__(self, word: int, value: int) -> None:
        with self.path.open("r+b") as file:
            file.seek(8 * word)
            file.write(struct.pack("q", value))


@pytest.fixture
def record(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Record:
    made = Record(tmp_path / "record")
    monkeypatch.setenv(ENV_PROGRESS_FILE, str(made.path))
    monkeypatch.setattr(progress, "_slot", None)
    monkeypatch.setattr(leaving, "time", SimpleNamespace(monotonic=lambda: NOW))
    return made


def test_a_step_without_a_vote_tells_that_it_has_ended(record: Record) -> None:
    leaving.take_part()
    assert (record[SPEAKS], record[BOUNDARY], record[KEEPS_IN]) == (1, -1, KeptIn.MEMORY)
    assert leaving.boundary(0) is None
    assert leaving.boundary(7) is None
    assert record[BOUNDARY] == 7
    leaving.take_part("storage")
    assert (record[BOUNDARY], record[KEEPS_IN]) == (7, KeptIn.STORAGE)


@pytest.mark.parametrize(("order", "answer"), [(GO_ON, None), (leave_at(5, KeptIn.MEMORY), "memory")])
def test_it_waits_while_it_is_held_without_burning_a_core(
    record: Record, order: int, answer: str | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    record[ORDER] = hold_until(NOW + 1)
    sleeps: list[float] = []

    def sleep(seconds: float) -> None:
        sleeps.append(seconds)
        if len(sleeps) == 9:
            assert record[BOUNDARY] == 5
            record[ORDER] = order

    monkeypatch.setattr(leaving, "time", SimpleNamespace(monotonic=lambda: NOW, sleep=sleep))
    assert leaving.boundary(5) == answer
    assert sleeps == [leaving.LOOK_SECONDS] * 9
    with pytest.raises(SystemExit) as ended:
        leaving.leave()
    gc.unfreeze()  # this process goes on
    assert ended.value.code == EXIT_LEFT


def test_it_leaves_by_no_vote_once_its_agent_has_said_no_more(record: Record) -> None:
    leaving.take_part()
    record[ORDER] = hold_until(NOW - 1)
    assert leaving.boundary(5) is None
    leaving.take_part("storage")
    assert record[SPEAKS] == GOES_ALONE
    record[ORDER] = leave_at(5, KeptIn.STORAGE)
    assert leaving.boundary(6) is None


def test_outside_of_dlr_nothing_happens(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(ENV_PROGRESS_FILE, raising=False)
    monkeypatch.setattr(progress, "_slot", None)
    leaving.take_part()
    assert leaving.boundary(5) is None
