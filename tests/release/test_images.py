"""Images are layers on a base, byte by byte the same each time, and their digests are those of what they name."""

from __future__ import annotations

import hashlib
import json
import tarfile
from pathlib import Path

import pytest

from release.archive import File
from release.images import Image, Layout, LayoutError, build
from tests.release.bases import make_base

FILES = {"opt/dlr/a.py": File(b"print(1)\n"), "usr/local/bin/dlr": File(b"#!/bin/sh\n", executable=True)}
IMAGE = Image("dlr-controller", FILES, ("dlr", "controller"), {"PYTHONPATH": "/opt/dlr"})
TIME = 1_700_000_000


@pytest.fixture(params=[False, True], ids=["one", "of several architectures"])
def base(tmp_path: Path, request: pytest.FixtureRequest) -> Layout:
    return Layout(make_base(tmp_path / "base", nested=request.param))


def unpacked(archive: Path, folder: Path) -> Layout:
    with tarfile.open(archive) as tar:
        tar.extractall(folder, filter="data")
    return Layout(folder)


def test_what_is_built_is_a_layout_with_one_more_layer(base: Layout, tmp_path: Path) -> None:
    digest = build(IMAGE, base, "0.1.0", "amd64", TIME, tmp_path / "image.tar")
    made = unpacked(tmp_path / "image.tar", tmp_path / "made")
    found, manifest = made.manifest("amd64")
    base_digest, base_manifest = base.manifest("amd64")
    assert found == digest
    assert manifest["layers"][:-1] == base_manifest["layers"]
    assert manifest["annotations"]["org.opencontainers.image.base.digest"] == base_digest
    config = json.loads(made.blob(manifest["config"]["digest"]).read_bytes())
    process = config["config"]
    assert process["Entrypoint"] == ["dlr", "controller"] and process["Cmd"] is None
    assert process["User"] == "65532:65532"
    assert process["Env"] == [
        "PATH=/usr/local/bin:/usr/bin:/bin",
        "PYTHON_VERSION=3.13.14",
        "PYTHONPATH=/opt/dlr",
    ]
    assert len(config["rootfs"]["diff_ids"]) == len(config["history"]) == len(manifest["layers"]) == 2
    for layer, diff_id in zip(manifest["layers"], config["rootfs"]["diff_ids"], strict=True):
        path = made.blob(layer["digest"])
        assert path.stat().st_size == layer["size"]
        with tarfile.open(path) as tar:
            content = tar.fileobj
            assert content is not None
            content.seek(0)
            assert f"sha256:{hashlib.sha256(content.read()).hexdigest()}" == diff_id


def test_layer_has_folders_modes_and_neither_owners_nor_times(base: Layout, tmp_path: Path) -> None:
    build(IMAGE, base, "0.1.0", "amd64", TIME, tmp_path / "image.tar")
    made = unpacked(tmp_path / "image.tar", tmp_path / "made")
    with tarfile.open(made.blob(made.manifest("amd64")[1]["layers"][-1]["digest"])) as tar:
        entries = {entry.name: entry for entry in tar}
    assert {name: entry.mode for name, entry in entries.items() if entry.isfile()} == {
        "opt/dlr/a.py": 0o644,
        "usr/local/bin/dlr": 0o755,
    }
    assert {name for name, entry in entries.items() if entry.isdir()} == {
        "opt",
        "opt/dlr",
        "usr",
        "usr/local",
        "usr/local/bin",
    }
    assert {(entry.mtime, entry.uid, entry.gid, entry.uname) for entry in entries.values()} == {
        (TIME, 0, 0, "")
    }


def test_the_same_files_make_the_same_bytes(base: Layout, tmp_path: Path) -> None:
    (tmp_path / "there").mkdir()
    archives = [tmp_path / "image.tar", tmp_path / "there" / "image.tar"]
    digests = {build(IMAGE, base, "0.1.0", "amd64", TIME, archive) for archive in archives}
    assert len(digests) == len({archive.read_bytes() for archive in archives}) == 1
    assert [path.name for path in (tmp_path / "there").iterdir()] == ["image.tar"]


def test_base_of_another_architecture_is_refused(base: Layout) -> None:
    with pytest.raises(LayoutError, match=r"has no image for linux/arm64\.$"):
        base.manifest("arm64")


def test_folder_that_is_no_layout_is_refused(tmp_path: Path) -> None:
    with pytest.raises(LayoutError, match=r"is not an OCI layout .* skopeo copy"):
        Layout(tmp_path).manifest("amd64")


@pytest.mark.parametrize("damage", ["changed", "missing"])
def test_damaged_base_is_refused(base: Layout, tmp_path: Path, damage: str) -> None:
    layer = base.blob(base.manifest("amd64")[1]["layers"][0]["digest"])
    if damage == "changed":
        layer.write_bytes(layer.read_bytes()[:-1])
    else:
        layer.unlink()
    with pytest.raises(LayoutError, match="is damaged" if damage == "changed" else "lacks the blob"):
        build(IMAGE, base, "0.1.0", "amd64", TIME, tmp_path / "image.tar")
    assert not (tmp_path / "image.tar").exists()
