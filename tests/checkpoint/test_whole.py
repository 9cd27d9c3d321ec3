"""What is told to be in storage is there, and stays: against other savers, storage's moods and the user's code."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from agent.slots.format import Mark
from crds.checkpoint_files import AFTER_FAILURE
from dlr.checkpoint import storage
from dlr.checkpoint.files import files_at
from dlr.checkpoint.saver import persist
from dlr.checkpoint.storage import StorageError
from tests.checkpoint.buckets import Bucket
from tests.checkpoint.states import request, saved, state, steps_in


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
