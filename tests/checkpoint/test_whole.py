"""What is told to be in storage is there, and stays: against other savers, storage's moods and the user's code."""

from __future__ import annotations

import errno
import gc
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path

import pytest
import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp

from agent.slots.format import Mark
from dlr.checkpoint import Checkpointer, choosing, leaving, persistence, storage
from dlr.checkpoint.choosing import choose
from dlr.checkpoint.files import LocalFiles, files_at
from dlr.checkpoint.persistence import Saver
from dlr.checkpoint.saver import persist
from dlr.checkpoint.storage import StorageError
from dlr.checkpoint.surroundings import Surroundings
from tests.checkpoint.states import request, save, saved, state, steps_in


def test_a_checkpoint_of_which_a_file_was_removed_or_cut_before_it_was_complete_is_none(
    tmp_path: Path,
) -> None:
    save(tmp_path, 3)
    files = files_at(tmp_path)
    manifest = storage.read_manifest(files, 3)
    data = next(file for file in manifest.files if file.name != storage.METADATA)
    files.remove(f"step-3/{storage.METADATA}")
    for content, reason in ((b"cut", "is 3 bytes long, not"), (None, "is gone")):
        files.remove(manifest.place_of(data))
        if content is not None:
            files.write(manifest.place_of(data), content)
        with pytest.raises(StorageError, match=reason):
            storage.publish(files, replace(manifest, files=(data,)), b"metadata")
        assert steps_in(tmp_path) == []


@pytest.mark.real
def test_a_saver_that_sends_no_answer_is_ended_and_its_save_counts_as_failed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    talks = [sys.executable, "-c", "input(); print('noise', flush=True); input()"]
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


HERE = Surroundings(0, 1, "", "a")


def fail_reads(monkeypatch: pytest.MonkeyPatch, of: str, errors: list[int]) -> None:
    """Have reads of that file fail, one after the other, before they work."""
    chunks, read = LocalFiles.chunks, LocalFiles.read

    def fail(name: str) -> None:
        if of in name and errors:
            raise OSError(errors.pop(0), "it is away")

    def chunks_or_fail(files: LocalFiles, name: str) -> Iterator[bytes]:
        fail(name)
        return chunks(files, name)

    def read_or_fail(files: LocalFiles, name: str, start: int = 0, length: int | None = None) -> bytes:
        fail(name)
        return read(files, name, start, length)

    monkeypatch.setattr(LocalFiles, "chunks", chunks_or_fail)
    monkeypatch.setattr(LocalFiles, "read", read_or_fail)


@pytest.mark.parametrize(
    "of", ["step-2/try-try1/__0_0.distcp", "step-2/.metadata", "step-2/try-try1/manifest.json"]
)
@pytest.mark.parametrize("beyond", [None, 0])
def test_a_read_that_fails_for_a_moment_does_not_cost_the_newest_checkpoint(
    beyond: int | None, of: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    save(tmp_path, 1)
    save(tmp_path, 2)
    monkeypatch.setattr(choosing, "_LOOK_SECONDS", 0.01)
    if beyond is None or "manifest" not in of:  # else memory goes before what cannot be listed at once
        fail_reads(monkeypatch, of, [errno.ESTALE, errno.EIO])
    assert (chosen := choose(files_at(tmp_path), HERE, beyond)) is not None and chosen.step == 2


@pytest.mark.parametrize("error", [errno.EIO, errno.EACCES])
@pytest.mark.parametrize("of", ["__0_0.distcp", "manifest.json"])
def test_a_checkpoint_that_cannot_be_read_is_not_given_up_for_an_older_one(
    of: str, error: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    save(tmp_path, 1)
    save(tmp_path, 2)
    monkeypatch.setattr(choosing, "_LOOK_SECONDS", 0.01)
    monkeypatch.setattr(choosing, "OUTAGE_SECONDS", 0.1)
    monkeypatch.setattr(choosing, "HUNG_SECONDS", 0.1)
    fail_reads(monkeypatch, f"step-2/try-try1/{of}", [error] * 999)
    with pytest.raises(StorageError, match="it is away"):
        choose(files_at(tmp_path), HERE)
    assert choose(files_at(tmp_path), HERE, beyond=0) is None, "memory has one, too"


def test_a_rank_outside_of_the_process_group_is_refused(tmp_path: Path, process_group: None) -> None:
    with pytest.raises(ValueError, match="rank 0 is not in process_group"):
        Checkpointer(tmp_path, state(0), process_group=dist.GroupMember.NON_GROUP_MEMBER)


@pytest.mark.parametrize("is_full", [True, False])
def test_leaving_says_so_where_the_storage_did_not_take_the_last_step(
    is_full: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def full(*_: object) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    if is_full:
        monkeypatch.setattr(storage, "publish", full)
    checkpointer = Checkpointer(tmp_path, state(0), persist_every=5)
    checkpointer.load()
    monkeypatch.setattr(leaving, "boundary", lambda step: "storage")
    assert checkpointer.step(3)
    gc.unfreeze()  # this process goes on
    assert steps_in(tmp_path) == ([] if is_full else [3])
    assert ("step 3 is not saved: the next start goes on from an earlier one" in caplog.text) == is_full


@dataclass
class Settings:
    """Of the script alone: its saver has not registered it."""

    rate: float = 0.5


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("own", [None, Settings()])
def test_torch_alone_reads_what_is_no_tensor_unless_a_class_is_the_scripts_own(
    tmp_path: Path, own: Settings | None
) -> None:
    made = state(0) | {"nested": {"own": own, "epoch": 7}}
    with torch.serialization.safe_globals([Settings]):
        slot = saved(made, mark := Mark(1, 1, 0, 1))
    persist(request(slot, mark, tmp_path), lambda: None)
    names = dcp.FileSystemReader(tmp_path / "step-1").read_metadata().state_dict_metadata.keys()
    values = {"step", "nested.epoch", "optimizer.param_groups.0.lr"}
    assert values & names == (values if own is None else set())
    nested = {"model": made["model"].state_dict()} | ({"nested": {"epoch": 0}} if own is None else {})
    dcp.load(nested, checkpoint_id=tmp_path / "step-1", no_dist=True)
    assert own is not None or nested["nested"]["epoch"] == 7
    with torch.serialization.safe_globals([Settings]):
        checkpointer = Checkpointer(tmp_path, again := made | {"nested": None})
        assert checkpointer.load() == 1
        checkpointer.close()
    assert again["nested"]["own"] == own
