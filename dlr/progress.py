"""What a training script says to the agent: its step, what it saved, and that no step is to be expected.

The agent names a file in `DLR_PROGRESS_FILE`, one for each training process, and reads it now and then;
crds.progress_record says what is in it. No call, no lock, no thread: cheap enough for every step. Outside of
dlr there is no such file, and nothing happens.

With the first call a process also becomes able to show where it is: on the signal `DLR_STACKS_SIGNAL`, the
interpreter writes the stacks of all its Python threads into `DLR_STACKS_FILE`, even while it hangs in C code.
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
"""The same memory as int64 and as float64, so that each number is written whole: a reader finds the old one
or the new. None before the first report; False outside of dlr."""
_has_stepped = False
_places: dict[str, int] = {}
"""The word of each number that was told, by name; 0 where there is no room for it."""
_COPY_SECONDS = 1.0
_copies: dict[str, _Copy] = {}
"""Numbers on their way from a GPU, by name."""
_busy_until: list[float] = []
"""Of the `busy` blocks that have begun and not ended, in any thread."""


def number_of(step: int) -> int:
    """Return the number of a step; one of `dlr.replicas` has it beside the count of those before it."""
    return getattr(step, "number", step)


def report(
    step: int, loss: SupportsFloat | None = None, samples: int | None = None, **numbers: SupportsFloat
) -> None:
    """Tell the agent that training has made `step`, and a few numbers of it. Call it each step, on all ranks.

    The dashboard plots the numbers over time, and the metrics have the newest ones, as rank 0 tells them. The
    agent looks once a second: of faster steps it sees some.

    Args:
        step: the number of optimizer steps so far, 1 after the first; or one of `dlr.replicas`, as it is.
        loss: the first one that is NaN or infinite becomes an Event and a condition of the job. A tensor on a
            GPU is copied once a second at most, and nobody waits for it: what is told is a little older.
        samples: of this step, over all ranks. It says whether more workers make training faster, where the
            samples of a step do not grow with their number (`dlr.data` tells it by itself).
        numbers: up to seven more, such as `lr=3e-4`, by names of at most 24 bytes. What is beyond is left
            out, and so is what is NaN, infinite or no number.
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
                    _tell("loss", value, times)
                elif not steps[words.NON_FINITE]:
                    steps[words.NON_FINITE] = of_step + 1
        if samples is not None:
            steps[words.SAMPLES] = int(samples)
        for name, number in numbers.items():
            for value, _ in _values(name, number, step):
                _tell(name, value, times)


def _values(name: str, number: SupportsFloat, step: int) -> list[tuple[float, int]]:
    """The number and its step, if it is one; of a tensor on a GPU what has arrived since, if anything."""
    try:
        if getattr(number, "is_cuda", False):
            return _arrived(name, number, step)
        if getattr(number, "requires_grad", False):  # torch warns of those that are made a float
            number = number.detach()  # type: ignore[attr-defined]
        return [(float(number), step)]
    except (TypeError, ValueError, OverflowError, RuntimeError):
        return []  # outside of dlr nobody would have noticed


def _arrived(name: str, number: SupportsFloat, step: int) -> list[tuple[float, int]]:
    copy, arrived = _copies.get(name), []
    if copy is not None and not copy.is_told and copy.is_done():
        copy.is_told = True
        arrived.append((copy.value(), copy.step))
    now = time.monotonic()
    if copy is None or (copy.is_told and now - copy.begun_at >= _COPY_SECONDS):
        _copies[name] = _Copy(number, step, now)
    return arrived


class _Copy:
    """A number on its way from a GPU."""

    def __init__(self, tensor: Any, step: int, now: float) -> None:
        import torch

        self.step = step
        self.begun_at = now
        self.is_told = False
        self._host = torch.empty(tensor.shape, dtype=tensor.dtype, pin_memory=True, device="cpu")
        self._host.copy_(tensor.detach(), non_blocking=True)
        self._event: Any = torch.cuda.Event()  # type: ignore[no-untyped-call]
        self._event.record(torch.cuda.current_stream(tensor.device))

    def is_done(self) -> bool:
        return bool(self._event.query())

    def value(self) -> float:
        return float(self._host)


def note_samples(samples: int) -> None:
    """Tell how many samples each step has, over all ranks, where `report` does not say it."""
    found = slot()
    if found is not False:
        found[0][words.SAMPLES] = samples


def checkpoint_saved(step: int) -> None:
    """Tell the agent that `step` is safely stored, so that a restart would repeat only what came after it.

    Call it once the checkpoint is complete where it will be loaded from, on the rank or ranks that save.

    Args:
        step: the last one that is in it, as `report` counts.
    """
    slot = _slot
    if slot is None:
        slot = _open()
    if slot is not False:
        steps, times = slot
        steps[words.CHECKPOINT] = int(number_of(step))
        times[words.CHECKPOINT_AT] = time.monotonic()


class busy:
    """Tell the agent that no step is to be expected: this is no hang.

    For what takes longer than `hangTimeoutSeconds`, such as an evaluation or a large checkpoint:
    `with dlr.busy(3_600): evaluate()`. Use it on every rank that waits meanwhile: each is watched by its
    own agent.

    Args:
        at_most_seconds: time limit in seconds, after which the agent begins to count again.
    """

    def __init__(self, at_most_seconds: float) -> None:
        self._at_most_seconds = at_most_seconds
        self._until: list[float] = []

    def __enter__(self) -> None:
        until = time.monotonic() + self._at_most_seconds
        self._until.append(until)
        _busy_until.append(until)
        _tell_busy()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        _busy_until.remove(self._until.pop())
        _tell_busy()


def begin_again() -> None:
    """Go on in the record of another start of the training processes, which the environment names."""
    global _slot, _has_stepped
    _slot, _has_stepped = None, False
    _places.clear()


def slot() -> Slot | Literal[False]:
    """Return the agent's record, as int64 and as float64; False outside of dlr."""
    return _open() if _slot is None else _slot


def _tell_busy() -> None:
    slot = _slot
    if slot is None:
        slot = _open()
    if slot is not False:
        slot[1][words.BUSY_UNTIL] = max(_busy_until, default=0.0)


def _tell(name: str, value: float, times: memoryview[float]) -> None:
    if value - value != 0.0:  # NaN, or infinite
        return
    place = _places.get(name)
    if place is None:
        place = _places[name] = _new_place(name, value, times)
    if place:
        times[place] = value


def _new_place(name: str, value: float, times: memoryview[float]) -> int:
    """Return the place that the number has from now on; 0 if there is no room for it."""
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
            pass  # telling the step is a courtesy, never a reason to stop training
        # In a Pod alone: `import dlr` stays light.
        from crds.stack_offer import offer_stacks

        offer_stacks(os.environ)
        if words.ENV_RECORDER_SOCKET in os.environ:  # `agent` is then no module of the script's
            from agent.torch_compat.training import serve_records

            serve_records(os.environ)
    _slot = slot  # only now: a thread that saves may be here at the same time
    return slot
