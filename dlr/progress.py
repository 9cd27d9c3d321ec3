"""How a training script says which step it is at, and which it has saved: 32 bytes shared with the agent.

The agent names a file in `DLR_PROGRESS_FILE`, one for each training process; the script writes `{int64
step, float64 CLOCK_MONOTONIC}` there, and the same of its last checkpoint behind it, in native byte order,
and the agent reads it now and then. No call, no lock, no thread: cheap enough for every step. Outside of dlr
there is no such file, and nothing happens.
"""

from __future__ import annotations

import mmap
import os
import time

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Literal

    Slot = tuple[memoryview[int], memoryview[float]]

ENV_PROGRESS_FILE = "DLR_PROGRESS_FILE"

_WORD_BYTES = 8
_slot: Slot | Literal[False] | None = None
"""The same memory as int64 and as float64, so that each number is written whole: a reader finds the old one
or the new. None before the first report; False outside of dlr."""


def report_step(step: int) -> None:
    """Tell the agent that training is at `step`. Call it in every step, on every rank."""
    slot = _slot
    if slot is None:
        slot = _open()
    if slot is not False:
        steps, times = slot
        steps[0] = step
        times[1] = time.monotonic()


def checkpoint_saved(step: int) -> None:
    """Tell the agent that `step` is safely stored, so that a restart would repeat only what came after it.

    Call it once the checkpoint is complete where it will be loaded from, on the rank or ranks that save.
    """
    slot = _slot
    if slot is None:
        slot = _open()
    if slot is not False and len(slot[0]) >= 4:  # an older agent knows of steps only
        steps, times = slot
        steps[2] = step
        times[3] = time.monotonic()


def _open() -> Slot | Literal[False]:
    global _slot
    slot: Slot | Literal[False] = False
    path = os.environ.get(ENV_PROGRESS_FILE)
    if path:
        try:
            with open(path, "r+b") as file:  # noqa: PTH123 (pathlib takes longer to import than all the rest)
                memory = memoryview(mmap.mmap(file.fileno(), 0))
            if len(memory) % (2 * _WORD_BYTES) == 0:
                slot = memory.cast("q"), memory.cast("d")
        except (OSError, ValueError):
            pass  # telling the step is a courtesy, never a reason to stop training
    _slot = slot  # only now: a thread that saves may be here at the same time
    return slot
