"""Copies from a GPU into a slot, on a stream beside the training's own."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from agent.memory.slot import Slot

Pair = tuple[Tensor, Tensor]
"""A view of a slot, and the tensor on a GPU that is to be copied there."""


class GpuCopies:
    """The copies of one save after the other."""

    def __init__(self) -> None:
        self._stream: torch.cuda.Stream | None = None
        self._done: torch.cuda.Event | None = None
        self._registered: set[Slot] = set()

    def begin(self, slot: Slot, settled: Sequence[Pair], passing: Sequence[Pair]) -> None:
        """Copy what the training's stream has computed so far.

        That stream goes on at once with all that leaves `settled` as it is, and waits for the copies of
        `passing`, which a forward pass may change (BatchNorm's buffers).
        """
        training = torch.cuda.current_stream()
        if self._stream is None:
            self._stream = torch.cuda.Stream()  # type: ignore[no-untyped-call]
        if slot not in self._registered:
            _register(slot)
            self._registered.add(slot)
        self._stream.wait_stream(training)
        with torch.cuda.stream(self._stream):
            _copy(passing, self._stream)
            training.wait_event(self._stream.record_event())
            _copy(settled, self._stream)
            self._done = self._stream.record_event()

    def wait(self) -> None:
        """Let the training's stream wait for what was begun; the host does not wait."""
        if self._done is not None:
            torch.cuda.current_stream().wait_event(self._done)

    def finish(self) -> None:
        """Wait for what was begun."""
        if self._done is not None:
            self._done.synchronize()

    def close(self) -> None:
        """Have the GPU forget the slots that it may write into."""
        self.finish()
        for slot in self._registered:
            torch.cuda.cudart().cudaHostUnregister(slot.whole().data_ptr())  # type: ignore[no-untyped-call]
        self._registered.clear()


def _copy(pairs: Sequence[Pair], stream: torch.cuda.Stream) -> None:
    for view, source in pairs:
        view.copy_(source, non_blocking=True)
        source.record_stream(stream)


def _register(slot: Slot) -> None:
    """Let the GPU write into the slot by itself.

    Raises:
        RuntimeError: the driver refuses, for want of memory that may be locked, for example.
    """
    memory = slot.whole()
    runtime = torch.cuda.cudart()  # type: ignore[no-untyped-call]
    status = runtime.cudaHostRegister(memory.data_ptr(), memory.numel(), 0)
    if int(status) != 0:
        raise RuntimeError(f"cudaHostRegister refuses {memory.numel():,} bytes: {status}")
