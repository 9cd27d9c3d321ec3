"""Writes and reads checkpoints with whatever Python runs it: `python -m tests.checkpoint.elsewhere write FOLDER`.

The folder `python-3.11.2` beside it was written so: that Python pickles a member of an enumeration by `getattr`. `read`
says whether a folder is what any other Python would have written.
"""

from __future__ import annotations

import datetime
import decimal
import enum
import pathlib
import shutil
import sys
from collections import Counter, OrderedDict, defaultdict, deque
from pathlib import Path
from typing import Any

import torch
from torch import nn
from torch.distributed.checkpoint.state_dict_saver import save

from dlr.checkpoint import Checkpointer
from dlr.checkpoint.values import TensorReference, load_values, write_values

STEP = 3
OF_OLD_PYTHON = Path(__file__).parent / "python-3.11.2"


class Color(enum.Enum):
    RED = "r"


class Marks(enum.Flag):
    BOLD = 1
    WIDE = 2


VALUES: dict[str, Any] = {
    "paths": [pathlib.PurePosixPath("a/b"), pathlib.PureWindowsPath("c:/d")],
    "times": [datetime.datetime(2026, 11, 29, tzinfo=datetime.timezone.utc), datetime.timedelta(3)],  # noqa: UP017
    "numbers": {"d": decimal.Decimal("0.1"), (1, ("k", 2.5)): 1 << 70, None: [True, 1j, b"b"]},
    "filled": [
        Counter("aab"),
        OrderedDict(a=1),
        defaultdict(list, a=[1]),
        deque([1, 2], 2),
        {3},
        frozenset({4}),
    ],
    "torch": [torch.float32, torch.Size([2]), torch.device("cpu"), torch.channels_last, torch.strided],
    "enumerations": [Color.RED, Marks.BOLD | Marks.WIDE, Marks(0)],
}


def state(weight: float) -> dict[str, Any]:
    model = nn.Linear(2, 2, bias=False)
    nn.init.constant_(model.weight, weight)
    return {"model": model, "kept": dict(VALUES) if weight else {}, "epoch": int(weight)}


def write(folder: Path) -> None:
    checkpointer = Checkpointer(folder / "of-dlr", state(STEP), persist_every=1)
    checkpointer.load()
    checkpointer.step(STEP)
    checkpointer.close()
    model = nn.Linear(2, 2, bias=False)
    nn.init.constant_(model.weight, STEP)
    save({"model": model, "epoch": STEP}, checkpoint_id=folder / "of-torch" / f"step-{STEP}", no_dist=True)
    (folder / "values").write_bytes(write_values(VALUES, {}))


def read(folder: Path, scratch: Path) -> None:
    """Make sure that a folder has what `write` writes, in a copy, since reading says whose a folder is."""
    assert load_values((folder / "values").read_bytes(), TensorReference) == VALUES
    for whose in ("of-dlr", "of-torch"):
        made = state(0)
        if whose == "of-torch":
            del made["kept"]
        checkpointer = Checkpointer(shutil.copytree(folder / whose, scratch / whose), made)
        assert checkpointer.load() == STEP
        checkpointer.close()
        assert bool((made["model"].weight == STEP).all()) and made["epoch"] == STEP
        assert made.get("kept", VALUES) == VALUES


if __name__ == "__main__":
    from tests.checkpoint import elsewhere  # the classes by the name that a reader knows

    torch.serialization.add_safe_globals([elsewhere.Color, elsewhere.Marks])
    if sys.argv[1] == "write":
        elsewhere.write(Path(sys.argv[2]))
    for folder, scratch in zip(sys.argv[2::2], sys.argv[3::2], strict=False):
        print(folder)
        elsewhere.read(Path(folder), Path(scratch))
