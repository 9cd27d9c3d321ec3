"""What one Python has written, every other reads: 3.11.0 to 3.11.3 pickle members of enumerations by `getattr`."""

from __future__ import annotations

import os
import pickle
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from torch.distributed.checkpoint import metadata as described
from torch.distributed.checkpoint.metadata import Metadata, TensorProperties, TensorStorageMetadata

from agent.slots.slot import DamagedError
from dlr.checkpoint import Checkpointer, StorageError
from dlr.checkpoint.folder_pickles import read_pickle
from dlr.checkpoint.values import TensorReference, load_values
from tests.checkpoint import elsewhere
from tests.checkpoint.test_replica_groups import Groups, as_group

SYSTEMS = Path("/usr/bin/python3")


@pytest.fixture
def registered() -> Any:
    with torch.serialization.safe_globals([elsewhere.Color, elsewhere.Marks]):
        yield


def test_folders_that_python_3_11_2_has_written_are_read(registered: None, tmp_path: Path) -> None:
    elsewhere.read(elsewhere.OF_OLD_PYTHON, tmp_path)


@pytest.mark.real
def test_the_systems_python_reads_what_this_one_has_written(registered: None, tmp_path: Path) -> None:
    """Debian 12's is 3.11.2. It takes this one's packages only where it is of the same minor version."""
    says = "import sys; print(sys.version_info[:2])"
    found = (
        subprocess.run([SYSTEMS, "-c", says], capture_output=True, text=True) if SYSTEMS.exists() else None
    )
    if found is None or found.stdout.strip() != str(sys.version_info[:2]):
        pytest.skip(f"{SYSTEMS} is no Python {sys.version_info[0]}.{sys.version_info[1]}")
    (scratch := tmp_path / "scratch").mkdir()
    elsewhere.write(tmp_path / "written")
    command = [SYSTEMS, "-m", elsewhere.__name__, "read", tmp_path / "written", scratch]
    subprocess.run(
        command, check=True, env={"PYTHONPATH": os.pathsep.join(filter(None, sys.path))}, timeout=300
    )


@pytest.mark.parametrize("protocol", range(2, pickle.HIGHEST_PROTOCOL + 1))
@pytest.mark.parametrize(
    "reduced", [lambda it: (getattr, (type(it), it.name)), lambda it: (type(it), (it.value,))]
)
def test_both_spellings_of_a_member_are_read_in_every_protocol(
    reduced: Any, protocol: int, registered: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    tensor = TensorStorageMetadata(TensorProperties(torch.int8), torch.Size([1]), [])
    for kind in (described._MEM_FORMAT_ENCODING, elsewhere.Color):
        monkeypatch.setattr(kind, "__reduce_ex__", lambda it, _: reduced(it))
    assert read_pickle(pickle.dumps(tensor, protocol), "it") == tensor
    assert load_values(pickle.dumps([elsewhere.Color.RED], protocol), TensorReference) == [
        elsewhere.Color.RED
    ]


@pytest.mark.parametrize(
    "of",
    [
        (described.Metadata, "__init__"),
        (elsewhere.Color, "mro"),
        (elsewhere.Color, "BLUE"),
        (pickle, "loads"),
        ("a", "join"),
    ],
    ids=str,
)
def test_getattr_gives_nothing_but_members_of_enumerations(of: tuple[Any, str], registered: None) -> None:
    spelled = b"cbuiltins\ngetattr\n" + (
        f"c{of[0].__module__}\n{of[0].__qualname__}\n".encode() if isinstance(of[0], type) else b"\x8c\x01a"
    )
    program = b"\x80\x04" + spelled + b"\x8c" + bytes([len(of[1])]) + of[1].encode() + b"\x86R."
    with pytest.raises(pickle.UnpicklingError):
        load_values(program, TensorReference)
    with pytest.raises(DamagedError):
        read_pickle(program, "it")


def test_a_replica_group_that_cannot_read_its_storage_does_not_begin_anew(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    as_group(monkeypatch, 0)
    folder = tmp_path / "step-3"
    folder.mkdir()
    (folder / ".metadata").write_bytes(pickle.dumps(Metadata({}, storage_data={}))[:-9])
    for begin in (
        lambda it: it.join(Groups(), loads=True),
        lambda it: (it.join(Groups(), loads=False), it.load_beyond(0)),
    ):
        checkpointer = Checkpointer(tmp_path, {"model": torch.nn.Linear(1, 1)})
        with pytest.raises(StorageError, match=r"step-3 is not used: \.metadata cannot be read"):
            begin(checkpointer)
        checkpointer.close()
