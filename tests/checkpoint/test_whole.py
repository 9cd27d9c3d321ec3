"""What is told to be in storage is there, and stays: against other savers, storage's moods and the user's code."""

from __future__ import annotations

import pickle
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest
import torch
import torch.distributed.checkpoint as dcp

from agent.slots.format import Mark
from crds.checkpoint_files import AFTER_FAILURE
from dlr.checkpoint import Checkpointer, persistence, storage
from dlr.checkpoint.files import files_at
from dlr.checkpoint.persistence import Saver
from dlr.checkpoint.saver import persist
from dlr.checkpoint.storage import StorageError
from tests.checkpoint.buckets import Bucket
from tests.checkpoint.states import request, saved, state, steps_in
from tests.checkpoint.talking import Talking


def save(path: Path | str, step: int, keep: int | None = None, round: int = 1) -> None:
    slot = saved(state(step), mark := Mark(round, step, 0, 1))
    persist(request(slot, mark, path, keep), lambda: None)
    slot.close()


def test_training_does_not_clear_away_what_savers_of_its_round_still_write_after_a_failure(
    tmp_path: Path,
) -> None:
    save(tmp_path, 500)
    present, earlier = (f"step-900/try-{AFTER_FAILURE}{number}" for number in (5, 4))
    for name in (present, earlier):
        (tmp_path / name / "notes").mkdir(parents=True)
    save(tmp_path, 1000, round=5)
    assert (tmp_path / present).exists() and not (tmp_path / earlier).exists()
    (tmp_path / present / "notes" / "gave-up-0").touch()
    storage.clear(files_at(tmp_path), 800, "a", f"{AFTER_FAILURE}5")
    assert not (tmp_path / present).exists(), "given up, it may be what fills the storage"


def test_a_checkpoint_of_which_a_file_was_removed_or_cut_before_it_was_complete_is_none(
    tmp_path: Path, bucket: Bucket
) -> None:
    for path in (str(tmp_path), bucket.url):
        save(path, 3)
        files = files_at(path)
        manifest = storage.read_manifest(files, 3)
        data = next(file for file in manifest.files if file.name != storage.METADATA)
        files.remove(f"step-3/{storage.METADATA}")
        whole = replace(manifest, files=(data,))
        for content, reason in ((b"cut", "is 3 bytes long, not"), (None, "is gone")):
            files.remove(manifest.place_of(data))
            if content is not None:
                files.write(manifest.place_of(data), content)
            with pytest.raises(StorageError, match=reason):
                storage.publish(files, whole, b"metadata")
            assert steps_in(path) == []


def test_what_a_writer_prints_is_taken_for_no_answer_of_its_saver(tmp_path: Path) -> None:
    saver, writer = Saver(), pickle.dumps(Talking(tmp_path)).hex()
    for step, path in ((1, tmp_path / "run"), (2, tmp_path / "file"), (3, tmp_path / "run")):
        (tmp_path / "file").touch()
        asked = replace(request(saved(state(step), mark := Mark(1, step, 0, 1)), mark, path), writer=writer)
        error = saver.save(asked, lambda: None)
        assert (error is None) == (path.name == "run"), error
    saver.close()
    assert steps_in(tmp_path / "run") == [3, 1]


@pytest.mark.parametrize(
    "line", ["noise", "7", "[]", '{"number": 0, "done": true}', '{"number": 1}', "[" * 9999]
)
def test_a_saver_that_sends_no_answer_is_ended_and_its_save_counts_as_failed(
    line: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    talks = [sys.executable, "-c", f"input(); print({line!r}, flush=True); input()"]
    monkeypatch.setattr(
        persistence,
        "start_saver",
        lambda: subprocess.Popen(talks, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True),
    )
    saver = Saver()
    error = saver.save(request("-", Mark(1, 1, 0, 1), tmp_path), lambda: None)
    assert error is not None and "no answer to this request" in error
    assert not saver.runs


def damage(path: Path, step: int) -> None:
    (data,) = (path / f"step-{step}").glob("try-*/__0_0.distcp")
    content = bytearray(data.read_bytes())
    content[len(content) // 2] ^= 1
    data.write_bytes(content)


def folders_in(path: Path) -> list[str]:
    return sorted(folder.name for folder in path.iterdir())


def test_the_step_just_written_stays_beside_a_later_one_that_is_damaged(tmp_path: Path) -> None:
    save(tmp_path, 1000)
    save(tmp_path, 2000)
    damage(tmp_path, 2000)
    checkpointer = Checkpointer(tmp_path, state(0), persist_every=500, keep=1)
    assert checkpointer.load() == 1000
    checkpointer.step(1500)
    checkpointer.close()
    assert folders_in(tmp_path) == ["step-1500", "step-2000"]
    checkpointer = Checkpointer(tmp_path, state(0))
    assert checkpointer.load() == 1500
    checkpointer.close()


@pytest.mark.filterwarnings("ignore")
def test_what_no_saver_has_written_is_not_removed_to_keep_few(tmp_path: Path) -> None:
    dcp.save({"model": torch.nn.Linear(2, 2)}, checkpoint_id=tmp_path / "step-5", no_dist=True)
    (tmp_path / "step-6").mkdir()
    (tmp_path / "step-6" / "model.safetensors").touch()
    (tmp_path / "step-7" / "try-killed").mkdir(parents=True)
    for step in (8, 9, 10):
        save(tmp_path, step, keep=2)
    assert folders_in(tmp_path) == ["step-10", "step-5", "step-6", "step-9"]
