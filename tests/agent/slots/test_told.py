"""What training processes say of their checkpoints reaches the agent, and is no more than they said."""

from __future__ import annotations

from pathlib import Path

import pytest

from agent.slots.told import read_every, read_resumed, read_storage
from crds.agent_report import Resumed
from crds.checkpoint_files import StorageFile, Tier
from dlr.checkpoint.surroundings import Notice, Surroundings

STORAGE: StorageFile = {"path": "/data/run", "job": "default/job", "keep": None}
DAMAGED = ["", "[]", "{}", '{"path": "/data/run", "job": "j", "keep": "all", "round": 2, "loaded": "x"}']


def notice(file: Path, round_: int = 2) -> Notice:
    here = Surroundings(0, 2, "default/job", "attempt", round_, storage_file=str(file))
    return Notice(here, Path("/data/run"), None)


@pytest.mark.parametrize("text", DAMAGED)
def test_what_no_process_has_told_is_not_known(tmp_path: Path, text: str) -> None:
    told = tmp_path / "storage.0"
    told.write_text(text)
    files = [tmp_path / "missing", told]
    assert read_storage(files) is None and read_resumed(files, 2) is None and read_every(files, 2) is None
    notice(told)
    assert read_storage(files) == STORAGE


def test_a_round_has_resumed_when_all_of_its_processes_have_loaded(tmp_path: Path) -> None:
    files = [tmp_path / "storage.0", tmp_path / "storage.1"]
    one, other = map(notice, files)
    assert read_resumed(files, 2) is None
    one.tell_loaded(120, Tier.STORAGE)
    assert read_resumed(files, 2) is None, "the other may still fail"
    other.tell_loaded(120, Tier.STORAGE)
    loaded = Resumed(2, Tier.STORAGE, 120)
    assert read_resumed(files, 2) == loaded
    assert read_resumed(files, 3) is None, "those of the next round have said nothing yet"


def test_the_interval_is_the_newest_that_was_told_in_this_round(tmp_path: Path) -> None:
    files = [tmp_path / "storage.0"]
    told = notice(files[0])
    assert read_every(files, 2) is None
    told.tell_every(8)
    told.tell_every(16)
    assert read_every(files, 2) == 16 and read_every(files, 3) is None


def test_outside_of_dlr_nothing_is_written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    Notice(Surroundings(0, 1, "", "attempt"), Path("/data/run"), 3).tell_loaded(1, Tier.STORAGE)
    assert not list(tmp_path.iterdir())
