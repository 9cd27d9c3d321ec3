"""A checkpoint's folder that a stranger has written: it is refused, and runs nothing, changes nothing,
takes no more memory than its bytes, and leads to no other folder."""

from __future__ import annotations

import io
import pathlib
import pickle
import zipfile
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from torch.distributed.checkpoint.metadata import Metadata, TensorProperties, TensorStorageMetadata
from torch.distributed.checkpoint.state_dict_saver import save

from agent.slots.format import Mark
from agent.slots.slot import DamagedError
from dlr.checkpoint import Checkpointer, StorageError, saver, storage
from dlr.checkpoint.files import LocalFiles, RemoteFiles
from dlr.checkpoint.folder_pickles import read_pickle
from dlr.checkpoint.state import VALUES
from dlr.checkpoint.storage import File, Manifest
from tests.checkpoint.states import request, saved, state, steps_in


@pytest.mark.parametrize(
    "program",
    [
        pytest.param(b"cpathlib\nPosixPath\nN}\x8c\x0b__truediv__K\x01s\x86b", id="a method of a class"),
        pytest.param(b"ctorch.serialization\n_get_layout\n}\x8c\x05cacheNsb", id="a function's attribute"),
    ],
)
def test_no_pickle_of_a_folder_changes_or_runs_anything(program: bytes) -> None:
    before = dict(vars(pathlib.PosixPath)), dict(vars(torch.serialization._get_layout))
    with pytest.raises(DamagedError, match="a file cannot be read"):
        read_pickle(b"\x80\x04" + program + b".", "a file")
    assert (dict(vars(pathlib.PosixPath)), dict(vars(torch.serialization._get_layout))) == before


def written(path: Path, change: Callable[[Metadata], None] = lambda _: None) -> dict[str, Any]:
    """A checkpoint of torch's alone, whose metadata are changed; return the state that it is of."""
    model = torch.nn.Linear(3, 4)
    state = {"model": model.state_dict(), "epoch": 3}
    save(state, checkpoint_id=path / "step-5", no_dist=True)
    file = path / "step-5" / ".metadata"
    metadata = pickle.loads(file.read_bytes())
    change(metadata)
    file.write_bytes(pickle.dumps(metadata))
    return {"model": torch.nn.Linear(3, 4), "epoch": 0}


def test_metadata_that_a_stranger_wrote_run_no_code(tmp_path: Path) -> None:
    checkpointer = Checkpointer(tmp_path, written(tmp_path))
    (tmp_path / "step-5" / ".metadata").write_bytes(b"cposix\nmkdir\n\x8c\x01x\x85R.")
    with pytest.raises(StorageError, match=r"posix\.mkdir, which does not belong there"):
        checkpointer.load()
    checkpointer.close()


def refused(path: Path, change: Callable[[Metadata], None], match: str) -> None:
    checkpointer = Checkpointer(path, written(path, change))
    with pytest.raises(StorageError, match=match):
        checkpointer.load()
    checkpointer.close()


@pytest.mark.parametrize("folder", ["/dev/", "../", "x/../../", "memory://other/"])
def test_no_metadata_lead_out_of_the_folder(tmp_path: Path, folder: str) -> None:
    def lead(metadata: Metadata) -> None:
        for index, place in metadata.storage_data.items():
            metadata.storage_data[index] = replace(place, relative_path=folder + place.relative_path)

    refused(tmp_path, lead, "which is no file of the checkpoint")


def test_no_tensor_has_more_bytes_than_its_files(tmp_path: Path) -> None:
    def claim(metadata: Metadata) -> None:
        properties = TensorProperties(torch.uint8)
        known = TensorStorageMetadata(properties, torch.Size([10**12]), [])
        metadata.state_dict_metadata[f"{VALUES}.0"] = known

    refused(tmp_path, claim, "of 1,000,000,000,000 bytes, of which 0 are in files")


@pytest.mark.parametrize(
    ("path", "match"),
    [
        (("epoch", 10**12), "lists of 1,000,000,000,001 items"),
        (("epoch", *["x"] * 100_000), "has no path of 'epoch'"),
        (("epoch", None), "has a path of 'epoch' that is none"),
        (("model", "weight", "x"), "has paths that no state has"),
    ],
)
def test_a_path_that_no_state_has_is_refused(tmp_path: Path, path: Any, match: str) -> None:
    refused(tmp_path, lambda metadata: metadata.planner_data.update(epoch=path), match)


def test_what_is_compressed_is_not_made_larger(tmp_path: Path) -> None:
    def swell(metadata: Metadata) -> None:
        plain = io.BytesIO()
        torch.save(torch.zeros(1 << 20, dtype=torch.uint8), plain)
        file = tmp_path / "step-5" / "bomb"
        with zipfile.ZipFile(file, "w", zipfile.ZIP_DEFLATED) as out, zipfile.ZipFile(plain) as entries:
            for name in entries.namelist():
                out.writestr(name, entries.read(name))
        for index, place in metadata.storage_data.items():
            if index.fqn == "epoch":
                new = replace(place, relative_path="bomb", offset=0, length=file.stat().st_size)
                metadata.storage_data[index] = new

    refused(tmp_path, swell, "epoch is compressed")


@pytest.mark.parametrize(
    "part",
    [
        b"\x80\x04N.",
        b"[" * 10_000,
        b"[1]",
        b"[[[]], [], []]",
        b'[[["a", "load", [1], [1], [0]]], [], []]',
        b'[[["a", "int8", ["1"], [1], [0]]], [], []]',
        b'[[["a", "int8", [1], ["1"], [0]]], [], []]',
        b'[[[null, "int8", [1], [1], [0]]], [], []]',
        b'[[], [["a", [0], "x"]], []]',
        b'[[], [["a", [0], "x", 0, "1"]], []]',
        b'[[], [["a", [0], "x", 0, 1e99]], []]',
        b'[[], [["a", [0], 1, 0, 1]], []]',
        b'[[], [], [{"name": "../x", "nbytes": 1, "sum": 1}]]',
        b'[[], [], [{"name": "x", "nbytes": 1, "sum": 1}]]',
    ],
    ids=str,
)
def test_a_checkpoint_with_what_no_rank_writes_is_not_completed(
    part: bytes, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(saver, "encode_part", lambda *_: part)
    slot = saved(state(3), mark := Mark(1, 3, 0, 1))
    error = saver.try_to_persist(request(slot, mark, tmp_path), lambda: None)
    assert error and steps_in(tmp_path) == []


@pytest.mark.parametrize("name", ["\0", "\ud800", "..", ".", "", "a/b", "x" * 256])
def test_a_name_that_no_file_has_is_refused(tmp_path: Path, name: str) -> None:
    for manifest in (Manifest("", 7, 1, "t", (File(name, 1, 1),)), Manifest("", 7, 1, name or "..", ())):
        with pytest.raises(StorageError, match="its manifest cannot be read"):
            Manifest.decode(manifest.encode())


def test_links_and_steps_of_another_form_are_neither_counted_nor_removed(tmp_path: Path) -> None:
    other, path = tmp_path / "other", tmp_path / "path"
    (other / "try-data").mkdir(parents=True)
    (other / "try-data" / "precious").touch()
    path.mkdir()
    (path / "step-950").symlink_to(other)
    storage.clear(LocalFiles(path), 900, "t")
    (other / ".metadata").touch()
    for name in ("7", "07", "٣", "6", "5"):
        (path / f"step-{name}" / "try-t").mkdir(parents=True)
        (path / f"step-{name}" / "try-t" / "manifest.json").touch()
        (path / f"step-{name}" / ".metadata").touch()
    storage.retire(LocalFiles(path), 2, 950)
    assert {it.name for it in path.iterdir()} == {"step-950", "step-7", "step-07", "step-٣", "step-6"}
    assert (other / ".metadata").exists() and (other / "try-data" / "precious").exists()


def test_no_message_has_the_password_of_an_address() -> None:
    files = RemoteFiles("memory://user:hunter2@bucket/run")
    assert str(files) == "memory://bucket/run" and "hunter2" in files.address("step-1")
