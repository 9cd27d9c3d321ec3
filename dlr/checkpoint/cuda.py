"""Copies from GPUs into a slot, on streams beside the training's own.

A thread begins on GPU 0 whatever the training uses, and its first call of the runtime makes a context there,
of half a gigabyte. So each call is made on a GPU that the state is on.
"""

from __future__ import annotations

import ctypes
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress

import torch
from torch import Tensor

from agent.slots.slot import Slot

Pair = tuple[Tensor, Tensor]
"""A view of a slot, and the tensor on a GPU that is to be copied there."""

_PORTABLE = 1
"""cudaHostRegisterPortable: for all of the process's GPUs."""

_RELAXED = 2
"""CU_STREAM_CAPTURE_MODE_RELAXED: this thread's calls spoil no capture of another thread."""


class GpuCopies:
    """The copies of one save after the other."""

    def __init__(self) -> None:
        self._streams: dict[torch.device, torch.cuda.Stream] = {}
        self._done: dict[torch.device, torch.cuda.Event] = {}
        """When the last save is copied, by the GPU that it is copied from."""
        self._registered: dict[Slot, int] = {}
        """By the number of the GPU whose context registered it."""

    def begin(self, slot: Slot, settled: Sequence[Pair], passing: Sequence[Pair]) -> None:
        """Copy what the training's streams have computed so far.

        These go on at once with all that leaves `settled` as it is, and wait for the copies of `passing`,
        which a forward pass may change (BatchNorm's buffers).

        Raises:
            RuntimeError: the driver refuses to write into the slot by itself.
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
        """Let the training's streams wait for what was begun; the host does not wait.

        A step that is captured into a CUDA graph waits for nothing: it does not run now.
        """
        if self._done and not torch.cuda.is_current_stream_capturing():
            for device, event in self._done.items():
                torch.cuda.current_stream(device).wait_event(event)

    def finish(self) -> None:
        """Wait for what was begun."""
        with beside_captures():
            for device, event in self._done.items():
                with torch.cuda.device(device):
                    event.synchronize()

    def close(self) -> None:
        """Have the GPU forget the slots that it may write into."""
        self.finish()
        for slot, device in self._registered.items():
            with torch.cuda.device(device):
                torch.cuda.cudart().cudaHostUnregister(slot.whole().data_ptr())  # type: ignore[no-untyped-call]
        self._registered.clear()

    def _register(self, slot: Slot, device: int) -> None:
        """Let the GPU write into the slot by itself, before its first save: a tenth of a second a GB.

        The driver does nothing else meanwhile, so a thread that did it earlier would hold up the first steps;
        and the agent may still be giving the slot its pages then, huge ones on all NUMA nodes.

        Raises:
            RuntimeError: the driver refuses, for want of memory that may be locked, for example.
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
    """Copy those that are on the GPU of the stream."""
    for view, source in pairs:
        if source.device == stream.device:
            view.copy_(source, non_blocking=True)
            source.record_stream(stream)


@contextmanager
def beside_captures() -> Iterator[None]:
    """Leave alone a CUDA graph that another thread captures meanwhile.

    By default any thread's call that allocates or registers memory breaks off a capture of the process.
    """
    try:
        exchange = ctypes.CDLL("libcuda.so.1").cuThreadExchangeStreamCaptureMode
    except (OSError, AttributeError):  # a GPU that is not NVIDIA's
        yield
        return
    mode = ctypes.c_int(_RELAXED)
    exchange(ctypes.byref(mode))
    try:
        yield
    finally:
        exchange(ctypes.byref(mode))


def _forget_error() -> None:
    """The runtime keeps its last error for whoever asks next, which would be the training's next kernel."""
    with suppress(RuntimeError):
        torch.zeros(1, device="cuda")
