"""Reports of a training script to its agent: steps, saved checkpoints, and pauses without steps.

The agent names a file for each training process in `DLR_PROGRESS_FILE`, and reads it regularly;
crds.progress_record describes its format. A report takes no call, lock or thread, and is cheap enough for
every step. Outside of dlr there is no such file, and nothing happens.

The first report also enables stack dumps: on the signal `DLR_STACKS_SIGNAL`, the interpreter writes the
stacks of all its Python threads into `DLR_STACKS_FILE`, even while it hangs in C code.
"""

from __future__ import annotations

import math
import mmap
import os
import time

from crds import progress_record as words

TYPE_CHECKING = False
if TYPE_CHECKING:
    from types import TracebackType
    from typing import Any, Literal, SupportsFloat

    Slot = tuple[memoryview[int], memoryview[float]]

_slot: Slot | Literal[False] | None = None
"""The same memory as int64 and as float64, so that each number is written atomically. None before the first
report; False outside of dlr."""
_has_stepped = False
_places: dict[str, int] = {}
"""Word of each reported number in the record, by name; 0 if the record is full."""
_COPY_SECONDS = 1.0
_copies: dict[str, _Copy] = {}
"""Numbers that are being copied from a GPU, by name."""
_busy_until: list[float] = []
"""Ends of the open `busy` blocks of all threads."""


def number_of(step: int) -> int:
    """Return the number of a step, which may be a step of `dlr.replicas`."""
    return getattr(step, "number", step)


def report(
    step: int, loss: SupportsFloat | None = None, samples: int | None = None, **numbers: SupportsFloat
) -> None:
    """Report a completed step, with a few numbers. Call it after each step, on all ranks.

    The dashboard plots rank 0's numbers over time, and the metrics have the newest. The agent reads once a
    second, so it misses some of faster steps.

    Args:
        step: the number of optimizer steps so far, 1 after the first; or a step of `dlr.replicas`.
        loss: the first NaN or infinite value becomes an Event and a condition of the job. A tensor on a GPU
            is copied at most once a second, asynchronously, so the reported value is a little older.
        samples: samples of this step, over all ranks. They show whether more workers make training faster, if
            the samples per step do not grow with the workers (`dlr.data` reports them itself).
        numbers: up to seven more, such as `lr=3e-4`, with names of at most 24 bytes. Further ones are
            ignored, and so are values that are NaN, infinite or no numbers.
    """
    slot = _slot
    if slot is None:
        slot = _open()
    if slot is not False:
        steps, times = slot
        step = int(number_of(step))
        steps[words.STEP] = step
        times[words.STEP_AT] = time.monotonic()
        if not _has_stepped:
            _first_step(steps, times)
        if loss is not None:
            for value, of_step in _values("loss", loss, step):
                if math.isfinite(value):
                    _write("loss", value, times)
                elif not steps[words.NON_FINITE]:
                    steps[words.NON_FINITE] = of_step + 1
        if samples is not None:
            steps[words.SAMPLES] = int(samples)
        for name, number in numbers.items():
            for value, _ in _values(name, number, step):
                _write(name, value, times)


def _values(name: str, number: SupportsFloat, step: int) -> list[tuple[float, int]]:
    """Return the number and its step; nothing if it is none. For a tensor on a GPU, the last copy's."""
    try:
        if getattr(number, "is_cuda", False):
            return _arrived(name, number, step)
        if getattr(number, "requires_grad", False):  # torch warns when such a tensor becomes a float
            number = number.detach()  # type: ignore[attr-defined]
        return [(float(number), step)]
    except (TypeError, ValueError, OverflowError, RuntimeError):
        return []  # it would not fail outside of dlr either


def _arrived(name: str, number: SupportsFloat, step: int) -> list[tuple[float, int]]:
    copy, arrived = _copies.get(name), []
    if copy is not None and not copy.is_reported and copy.is_done():
        copy.is_reported = True
        arrived.append((copy.value(), copy.step))
    now = time.monotonic()
    if copy is None or (copy.is_reported and now - copy.begun_at >= _COPY_SECONDS):
        _copies[name] = _Copy(number, step, now)
    return arrived


class _Copy:
    """Asynchronous copy of a number from a GPU."""

    def __init__(self, tensor: Any, step: int, now: float) -> None:
        import torch

        self.step = step
        self.begun_at = now
        self.is_reported = False
        self._host = torch.empty(tensor.shape, dtype=tensor.dtype, pin_memory=True, device="cpu")
        self._host.copy_(tensor.detach(), non_blocking=True)
        self._event: Any = torch.cuda.Event()  # type: ignore[no-untyped-call]
        self._event.record(torch.cuda.current_stream(tensor.device))

    def is_done(self) -> bool:
        return bool(self._event.query())

    def value(self) -> float:
        return float(self._host)


def note_samples(samples: int) -> None:
    """Report the samples per step, over all ranks, in place of `report`."""
    found = slot()
    if found is not False:
        found[0][words.SAMPLES] = samples


def checkpoint_saved(step: int) -> None:
    """Report that a checkpoint is stored, so that a restart would repeat only later steps.

    Call it when the checkpoint is complete in its final place, on the rank or ranks that save.

    Args:
        step: the last step in the checkpoint, as in `report`.
    """
    slot = _slot
    if slot is None:
        slot = _open()
    if slot is not False:
        steps, times = slot
        steps[words.CHECKPOINT] = int(number_of(step))
        times[words.CHECKPOINT_AT] = time.monotonic()


class busy:
    """Suspends the agent's hang detection in a block without steps.

    Use it for work that takes longer than `hangTimeoutSeconds`, such as an evaluation or a large checkpoint:
    `with dlr.busy(3_600): evaluate()`. Use it on every rank that waits meanwhile, since each rank's own agent
    watches it.

    Args:
        at_most_seconds: time limit in seconds, after which hang detection continues.
    """

    def __init__(self, at_most_seconds: float) -> None:
        self._at_most_seconds = at_most_seconds
        self._until: list[float] = []

    def __enter__(self) -> None:
        until = time.monotonic() + self._at_most_seconds
        self._until.append(until)
        _busy_until.append(until)
        _write_busy()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        _busy_until.remove(self._until.pop())
        _write_busy()


def begin_again() -> None:
    """Use the record of another start of the training processes, which the environment names."""
    global _slot, _has_stepped
    _slot, _has_stepped = None, False
    _places.clear()


def slot() -> Slot | Literal[False]:
    """Return the agent's record, as int64 and as float64; False outside of dlr."""
    return _open() if _slot is None else _slot


def _write_busy() -> None:
    slot = _slot
    if slot is None:
        slot = _open()
    if slot is not False:
        slot[1][words.BUSY_UNTIL] = max(_busy_until, default=0.0)


def _write(name: str, value: float, times: memoryview[float]) -> None:
    if value - value != 0.0:  # NaN, or infinite
        return
    place = _places.get(name)
    if place is None:
        place = _places[name] = _new_place(name, value, times)
    if place:
        times[place] = value


def _new_place(name: str, value: float, times: memoryview[float]) -> int:
    """Assign a place in the record to a number, and return it; 0 if the record is full."""
    place = words.FIRST_NUMBER + words.WORDS_OF_NUMBER * sum(map(bool, _places.values()))
    encoded = name.encode()
    is_full = place * words.WORD_BYTES >= words.RECORD_BYTES
    if is_full or len(encoded) > words.MAX_NUMBER_NAME:
        return 0
    times[place] = value
    begin = words.WORD_BYTES * (place + 1)
    times.cast("B")[begin : begin + len(encoded)] = encoded
    return place


def _first_step(steps: memoryview[int], times: memoryview[float]) -> None:
    global _has_stepped
    _has_stepped = True
    steps[words.FIRST_STEP] = steps[words.STEP]
    times[words.FIRST_STEP_AT] = times[words.STEP_AT]


def _open() -> Slot | Literal[False]:
    global _slot
    slot: Slot | Literal[False] = False
    path = os.environ.get(words.ENV_PROGRESS_FILE)
    if path:
        try:
            with open(path, "r+b") as file:  # noqa: PTH123 (pathlib takes longer to import than all the rest)
                memory = memoryview(mmap.mmap(file.fileno(), 0))
            if len(memory) >= words.RECORD_BYTES:
                slot = memory.cast("q"), memory.cast("d")
        except (OSError, ValueError):
            pass  # a failed report must not stop the training
        # Imported in a Pod only, so that `import dlr` stays light.
        from crds.stack_offer import offer_stacks

        offer_stacks(os.environ)
        if words.ENV_RECORDER_SOCKET in os.environ:  # only then is `agent` surely dlr's, not the script's
            from agent.torch_compat.training import serve_records

            serve_records(os.environ)
    _slot = slot  # last, since a thread that saves may be here at the same time
    return slot
