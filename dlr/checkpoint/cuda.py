"""Copies from GPUs into a slot, on streams beside the training's own.

A new thread has GPU 0 as its current device, and its first runtime call would create a context of half a
gigabyte there. So each call selects a GPU that holds a part of the state.
"""

from __future__ import annotations

import ctypes
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress

import torch
from torch import Tensor

from agent.slots.slot import Slot

Pair = tuple[Tensor, Tensor]
"""A view of a slot, and the tensor on a GPU to copy there."""

_PORTABLE = 1
"""cudaHostRegisterPortable: for all of the process's GPUs."""

_RELAXED = 2
"""CU_STREAM_CAPTURE_MODE_RELAXED: this thread's calls spoil no capture of another thread."""


class GpuCopies:
    """Copies of the successive saves."""

    def __init__(self) -> None:
        self._streams: dict[torch.device, torch.cuda.Stream] = {}
        self._done: dict[torch.device, torch.cuda.Event] = {}
        """End of the copies of the last save, by source GPU."""
        self._registered: dict[Slot, int] = {}
        """Index of the GPU whose context registered a slot."""

    def begin(self, slot: Slot, settled: Sequence[Pair], passing: Sequence[Pair]) -> None:
        """Begin to copy, after the work that is queued on the training's streams.

        The training's streams wait for the copies of `passing`, which a forward pass may change (BatchNorm's
        buffers), but not for those of `settled`, which only an optimizer's step changes.

        Raises:
            RuntimeError: the driver refuses to register the slot.
        """
        devices = [*dict.fromkeys(source.device for _, source in (*settled, *passing))]
        self._register(slot, devices[0].index)
        self._done = {}
        for device in devices:
            training = torch.cuda.current_stream(device)
            if device not in self._streams:
                self._streams[device] = torch.cuda.Stream(device)  # type: ignore[no-untyped-call]
            stream = self._streams[device]
            stream.wait_stream(training)
            with torch.cuda.device(device), torch.cuda.stream(stream):
                _copy(passing, stream)
                training.wait_event(stream.record_event())
                _copy(settled, stream)
                self._done[device] = stream.record_event()

    def wait(self) -> None:
        """Let the training's streams wait for the copies; the host does not wait.

        While a step is captured into a CUDA graph, it does not run, and so does not wait.
        """
        if self._done and not torch.cuda.is_current_stream_capturing():
            for device, event in self._done.items():
                torch.cuda.current_stream(device).wait_event(event)

    def finish(self) -> None:
        """Wait for the copies."""
        with beside_captures():
            for device, event in self._done.items():
                with torch.cuda.device(device):
                    event.synchronize()

    def close(self) -> None:
        """Wait for the copies, and unregister the slots."""
        self.finish()
        for slot, device in self._registered.items():
            with torch.cuda.device(device):
                torch.cuda.cudart().cudaHostUnregister(slot.whole().data_ptr())  # type: ignore[no-untyped-call]
        self._registered.clear()

    def _register(self, slot: Slot, device: int) -> None:
        """Register the slot for DMA before its first save, which takes a tenth of a second per GB.

        The driver is blocked meanwhile, so an earlier registration in a thread would delay the first steps;
        besides, the agent may still be allocating the pages of the slot then, huge ones on all NUMA nodes.

        Raises:
            RuntimeError: the driver refuses, as where the limit for locked memory is too low.
        """
        if slot in self._registered:
            return
        with torch.cuda.device(device):
            memory = slot.whole()
            runtime = torch.cuda.cudart()  # type: ignore[no-untyped-call]
            status = int(runtime.cudaHostRegister(memory.data_ptr(), memory.numel(), _PORTABLE))
            if status != 0:
                _forget_error()
                reason = runtime.cudaGetErrorString(runtime.cudaError(status))
                raise RuntimeError(f"cudaHostRegister refuses {memory.numel():,} bytes: {reason}")
            self._registered[slot] = device


def _copy(pairs: Sequence[Pair], stream: torch.cuda.Stream) -> None:
    """Copy the tensors that are on the GPU of the stream."""
    for view, source in pairs:
        if source.device == stream.device:
            view.copy_(source, non_blocking=True)
            source.record_stream(stream)


@contextmanager
def beside_captures() -> Iterator[None]:
    """Keep this thread's calls from invalidating a CUDA graph capture of another thread.

    By default a call of any thread that allocates or registers memory invalidates captures in the process.
    """
    try:
        exchange = ctypes.CDLL("libcuda.so.1").cuThreadExchangeStreamCaptureMode
    except (OSError, AttributeError):  # not an NVIDIA GPU
        yield
        return
    mode = ctypes.c_int(_RELAXED)
    exchange(ctypes.byref(mode))
    try:
        yield
    finally:
        exchange(ctypes.byref(mode))


def _forget_error() -> None:
    """Clear the runtime's last error, which the training's next kernel launch would report otherwise."""
    with suppress(RuntimeError):
        torch.zeros(1, device="cuda")
