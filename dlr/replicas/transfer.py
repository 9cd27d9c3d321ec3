"""The state of the leader on its way to those behind, while all train: a broadcast, by a thread on each side.

What is sent is what `dlr.checkpoint` would save: the tensors by name, and one pickle of all else, which is
read with torch's limits for weights. Each tensor goes once, in the first part of two or in the second.
"""

from __future__ import annotations

import ctypes
import json
import threading
from collections.abc import Callable, Iterator, Mapping, MutableMapping
from contextlib import contextmanager
from dataclasses import asdict
from typing import Any

import torch
from torch import Tensor, nn

from agent.slots.format import TensorPart
from agent.torch_compat import process_groups
from dlr.checkpoint.cuda import beside_captures
from dlr.checkpoint.state import VALUES, calm_part, capture, restore
from dlr.checkpoint.tensors import local_tensor, part_of

CHUNK_BYTES = 32 << 20
ALIGNMENT = 16
MOST_HEADER_BYTES = 256 << 20
"""Size of the list of tensors, and of the pickle, that a receiver makes room for."""
DEVICES = ("cpu", "cuda")
"""Types of the devices whose tensors are sent, in this order."""


class GivenUpError(Exception):
    """A state is needed no more: its version is over."""


class TensorStream:
    """Tensors of one device in a row, as bytes."""

    def __init__(self, parts: list[TensorPart]) -> None:
        self.parts = parts
        self.offsets: list[int] = []
        end = 0
        for part in parts:
            self.offsets.append(end)
            end += -(-part.nbytes // ALIGNMENT) * ALIGNMENT
        self.nbytes = end

    def views(self, data: Tensor) -> Iterator[tuple[TensorPart, Tensor]]:
        """Return the tensors within their bytes."""
        for part, offset in zip(self.parts, self.offsets, strict=True):
            piece = data[offset : offset + part.nbytes]
            yield part, piece.view(getattr(torch, part.dtype)).view(part.shape)


class TransferGroups:
    """The groups over which a state travels; the leader has rank 0.

    Args:
        control: for tensors on the CPU.
        data: for those on a GPU.
    """

    def __init__(self, control: Any, data: Any) -> None:
        self.groups = control, data

    def broadcast(self, tensor: Tensor) -> None:
        """Send the leader's tensor to the others, in place."""
        control, data = self.groups
        if tensor.device.type == "cpu":
            control.broadcast([tensor]).wait()
            return
        process_groups.follow(data.broadcast([tensor]))
        torch.cuda.current_stream(tensor.device).synchronize()

    def broadcast_bytes(self, data: bytes | None) -> bytes:
        """Send the leader's bytes to the others; None at those."""
        length = 0 if data is None else len(data)
        size = torch.tensor([length], dtype=torch.int64, device="cpu")
        self.broadcast(size)
        if not 0 <= int(size) <= MOST_HEADER_BYTES:
            raise ValueError(f"the leader's state has a list of {int(size)} bytes")
        buffer = torch.zeros(int(size), dtype=torch.uint8, device="cpu")
        if data:
            buffer.copy_(torch.frombuffer(bytearray(data), dtype=torch.uint8))
        if int(size):
            self.broadcast(buffer)
        if data is not None:
            return data
        return ctypes.string_at(buffer.data_ptr(), buffer.numel())  # NumPy may not be installed


class Transfer(threading.Thread):
    """One side of it.

    Args:
        connect: makes the connection, in the thread.
        act: sends or receives over it.
        done: is called at the end.
        device: the one that this process trains on. On a GPU the state travels in a stream of its own: in the
            one that training uses, two ranks of a group may enqueue it in different places between the
            collectives of their group, and then wait for each other.
    """

    def __init__(
        self,
        connect: Callable[[], TransferGroups],
        act: Callable[[TransferGroups], None],
        done: Callable[[], None],
        device: torch.device,
    ) -> None:
        super().__init__(name="dlr-replicas-state", daemon=True)
        self._connect = connect
        self._act = act
        self._done = done
        self._device = device
        self.error: Exception | None = None
        self.is_done = False

    def run(self) -> None:
        try:
            with own_stream(self._device):
                self._act(self._connect())
        except Exception as error:  # torch raises RuntimeErrors of many kinds, and the store its own
            self.error = error.with_traceback(None)  # whose frames would keep the connection open
        self.is_done = True
        self._done()


@contextmanager
def own_stream(device: torch.device) -> Iterator[None]:
    """Have this thread work on a device in a stream of its own, and spoil no capture; on a CPU there is none.

    A thread begins on GPU 0, where its first call would make a context.
    """
    if device.type != "cuda":
        yield
        return
    with torch.cuda.device(device), beside_captures(), torch.cuda.stream(torch.cuda.Stream(device)):  # type: ignore[no-untyped-call]
        yield


def event_on(device: torch.device) -> Any:
    """Record an event behind what the current stream of a device still does; None on a CPU."""
    return torch.cuda.current_stream(device).record_event() if device.type == "cuda" else None


def _wait_for(event: Any) -> None:
    """Have the current stream wait for an event of `event_on`."""
    if event is not None:
        torch.cuda.current_stream().wait_event(event)


class Outgoing:
    """The leader's state, of which a step changes the parameters only at its end.

    They are sent during the step, with what optimizers keep of them, and with modules' buffers as the step
    began. All else follows as it is when the step's gradients are averaged: the script may set learning rates
    before.

    Args:
        is_given_up: whether it is needed no more.
        changed: is notified when that has changed.
        device: the one that this process trains on.
    """

    def __init__(
        self,
        state: Mapping[str, Any],
        is_given_up: Callable[[], bool],
        changed: threading.Condition,
        device: torch.device,
    ) -> None:
        self._state = state
        self._device = device
        self._is_given_up = is_given_up
        self._changed = changed
        captured = capture(calm_part(state), rng_state=False)
        of_modules = tuple(f"{name}." for name, each in state.items() if isinstance(each, nn.Module))
        self._first = {
            name: each if name in captured.settled else each.detach().clone()
            for name, each in captured.tensors.items()
            if name in captured.settled or name.startswith(of_modules)
        }
        self._is_computed = event_on(device)
        self._rest: tuple[dict[str, Tensor], bytes, Any] | None = None

    def complete(self) -> None:
        """Have the rest sent as it is now; it may not change until then."""
        if self._rest is not None:
            return
        captured = capture(self._state, rng_state=False)
        rest = {name: each for name, each in captured.tensors.items() if name not in self._first}
        with self._changed:
            self._rest = rest, captured.pickles[VALUES], event_on(self._device)
            self._changed.notify_all()

    def send(self, connection: TransferGroups) -> None:
        """Send it; for the thread.

        Raises:
            GivenUpError: it is needed no more.
        """
        _wait_for(self._is_computed)
        self._send(connection, self._first)
        with self._changed:
            self._changed.wait_for(lambda: self._rest is not None or self._is_given_up())
        if self._rest is None:
            raise GivenUpError
        tensors, values, is_computed = self._rest
        _wait_for(is_computed)
        self._send(connection, tensors)
        connection.broadcast_bytes(values)

    def _send(self, connection: TransferGroups, tensors: Mapping[str, Tensor]) -> None:
        parts = {name: part_of(name, each) for name, each in tensors.items()}
        local = {name: local_tensor(each) for name, each in tensors.items()}
        names = {
            device: [name for name, each in local.items() if each.device.type == device] for device in DEVICES
        }
        header = {device: [asdict(parts[name]) for name in of_device] for device, of_device in names.items()}
        connection.broadcast_bytes(json.dumps(header).encode())
        for of_device in filter(None, names.values()):
            stream = TensorStream([parts[name] for name in of_device])
            for chunk in _chunks(stream, [local[name] for name in of_device]):
                if self._is_given_up():  # and what the chunk was copied from may have changed meanwhile
                    raise GivenUpError
                connection.broadcast(chunk)


class Incoming:
    """A state that arrives beside the training of this process, which it replaces afterwards."""

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self._values = b""
        self._found: dict[str, tuple[TensorPart, Tensor]] = {}

    def receive(self, connection: TransferGroups) -> None:
        """Receive it; for the thread."""
        self._receive(connection)
        self._receive(connection)
        self._values = connection.broadcast_bytes(None)

    def _receive(self, connection: TransferGroups) -> None:
        header = json.loads(connection.broadcast_bytes(None))
        for device in DEVICES:
            stream = TensorStream([_part(each) for each in header[device]])
            if not stream.parts:
                continue
            data = self._receive_bytes(connection, stream.nbytes, device)
            self._found |= {part.name: (part, tensor) for part, tensor in stream.views(data)}

    def _receive_bytes(self, connection: TransferGroups, nbytes: int, device_type: str) -> Tensor:
        """Receive the tensors of one type of device; on a GPU without room for them, in host memory."""
        place = torch.device("cpu") if device_type == "cpu" else self._device
        try:
            on_device = place.type == "cpu" or nbytes <= _room_on(place)
            data = torch.empty(nbytes, dtype=torch.uint8, device=place if on_device else "cpu")
        except torch.OutOfMemoryError:
            data = torch.empty(nbytes, dtype=torch.uint8, device="cpu")
        for begin in range(0, nbytes, CHUNK_BYTES):
            piece = data[begin : begin + CHUNK_BYTES]
            chunk = piece if data.device.type == place.type else torch.empty_like(piece, device=place)
            connection.broadcast(chunk)
            if chunk is not piece:
                piece.copy_(chunk)
        return data

    def load(self, state: MutableMapping[str, Any]) -> None:
        """Make the live state what has arrived.

        Raises:
            MismatchError: it is of another model or optimizer.
        """

        @torch.no_grad()
        def fill(targets: dict[str, Tensor]) -> None:
            for name, target in targets.items():
                arrived = self._found[name][1]
                local_tensor(target).copy_(arrived)
                if arrived.device.type == "cuda":  # whose memory is the other stream's to use again
                    arrived.record_stream(torch.cuda.current_stream(arrived.device))

        restore(state, self._values, None, [part for part, _ in self._found.values()], fill)


def _room_on(device: torch.device) -> int:
    """Return how large a state a GPU has room for: half of what is free, as training goes on beside it."""
    free, _ = torch.cuda.mem_get_info(device)
    return (free + torch.cuda.memory_reserved(device) - torch.cuda.memory_allocated(device)) // 2


def _part(fields: dict[str, Any]) -> TensorPart:
    for name in ("shape", "global_shape", "global_offset"):
        if fields[name] is not None:
            fields[name] = tuple(fields[name])
    return TensorPart(**fields)


def _chunks(stream: TensorStream, tensors: list[Tensor]) -> Iterator[Tensor]:
    """Return the bytes of a stream, chunk by chunk."""
    device = tensors[0].device
    chunk, filled, begin = torch.empty(0, dtype=torch.uint8, device=device), 0, 0
    for at, (tensor, offset) in enumerate(zip(tensors, stream.offsets, strict=True)):
        data = tensor.detach().contiguous().reshape(-1).view(torch.uint8)
        end = stream.offsets[at + 1] if at + 1 < len(tensors) else stream.nbytes
        taken = 0
        while offset + taken < end:
            if filled == chunk.numel():
                if filled:
                    yield chunk
                size = min(CHUNK_BYTES, stream.nbytes - begin)
                chunk, filled = torch.empty(size, dtype=torch.uint8, device=device), 0
                begin += size
            room = min(chunk.numel() - filled, end - offset - taken)
            piece = data[taken : taken + room]
            chunk[filled : filled + piece.numel()].copy_(piece)
            filled += room
            taken += room
    if filled:
        yield chunk
