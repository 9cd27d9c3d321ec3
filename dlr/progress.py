"""How a training script says which step it is at: 16 bytes of memory shared with the agent.

The agent names a file in `DLR_PROGRESS_FILE`, one for each training process; the script writes `{int64
step, float64 CLOCK_MONOTONIC}` there, in native byte order, and the agent reads it now and then. No call,
no lock, no thread: cheap enough for every step. Outside of dlr there is no such file, and nothing happens.
"""

from __future__ import annotations

import mmap
import os
import struct
import time

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Literal

ENV_PROGRESS_FILE = "DLR_PROGRESS_FILE"

_RECORD = struct.Struct("qd")
_slot: mmap.mmap | Literal[False] | None = None
"""None before the first report; False outside of dlr."""


def report_step(step: int) -> None:
    """Tell the agent that training is at `step`. Call it in every step, on every rank."""
    slot = _slot
    if slot is None:
        slot = _open()
    if slot is not False:
        _RECORD.pack_into(slot, 0, step, time.monotonic())


def _open() -> mmap.mmap | Literal[False]:
    global _slot
    path = os.environ.get(ENV_PROGRESS_FILE)
    _slot = False
    if path:
        try:
            with open(path, "r+b") as file:  # noqa: PTH123 (pathlib takes longer to import than all the rest)
                _slot = mmap.mmap(file.fileno(), _RECORD.size)
        except (OSError, ValueError):
            pass  # telling the step is a courtesy, never a reason to stop training
    return _slot
