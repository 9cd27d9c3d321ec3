"""Transfer of the leader's state to the groups behind, during training: a broadcast by a thread on each side.

It sends the same as `dlr.checkpoint` saves: the tensors by name, and one pickle of all other values, which is
read with the limits of `weights_only`. Each tensor is sent once, in the first of two parts or in the second.
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
"""Most bytes that a receiver allocates for the list of tensors, or for the pickle."""
DEVICES = ("cpu", "cuda")
"""Types of the devices whose tensors are sent, in this order."""


class GivenUpError(Exception):
    """A state is no longer needed, since its version is over."""


class TensorStream:
    """Consecutive tensors of one device, as bytes."""

    def __init__(self, parts: list[TensorPart]) -> None:
        self.parts = parts
        self.offsets: list[int] = []
        end = 0
        for part in parts:
            self.offsets.append(end)
            end += -(-part.nbytes // ALIGNMENT) * ALIGNMENT
        self.nbytes = end

    def views(self, data: Tensor) -> Iterator[tuple[TensorPart, Tensor]]:
        """Yield the tensors as views of their bytes."""
        for part, offset in zip(self.parts, self.offsets, strict=True):
            piece = data[offset : offset + part.nbytes]
            yield part, piece.view(getattr(torch, part.dtype)).view(part.shape)


class TransferGroups:
    """Process groups for the transfer of a state; the leader has rank 0.

    Args:
        control: group for tensors on the CPU.
        data: group for tensors on a GPU.
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
        """Send the leader's bytes to the others, which pass None."""
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
    """One side of a transfer.

    Args:
        connect: creates the connection, in the thread.
        act: sends or receives over it.
        done: called at the end.
        device: device that this process trains on. On a GPU the transfer uses a stream of its own: in the
            training's stream, two ranks of a group could enqueue it at different places between the
            collectives of their group, and deadlock.
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
            self.error = error.with_traceback(None)  # the traceback's frames would keep the connection open
        self.is_done = True
        self._done()


@contextmanager
def own_stream(device: torch.device) -> Iterator[None]:
    """Run the block on a GPU in a stream of its own, without invalidating captures; does nothing on a CPU.

    A new thread has GPU 0 as its current device, where its first call would create a context.
    """
    if device.type != "cuda":
        yield
        return
    with torch.cuda.device(device), beside_captures(), torch.cuda.stream(torch.cuda.Stream(device)):  # type: ignore[no-untyped-call]
        yield


def event_on(device: torch.device) -> Any:
    """Record an event on the current stream of a device; None on a CPU."""
    return torch.cuda.current_stream(device).record_event() if device.type == "cuda" else None


def _wait_for(event: Any) -> None:
    """Let the current stream wait for an event of `event_on`."""
    if event is not None:
        torch.cuda.current_stream().wait_event(event)


class Outgoing:
    """The leader's state during a step, which changes the parameters only at its end.

    The parameters are sent during the step, with the optimizers' state of them, and modules' buffers from the
    beginning of the step. All other state follows after the step's gradients are averaged, since the script
    may set learning rates before.

    Args:
        is_given_up: returns whether the state is no longer needed.
        changed: notified when that changes.
        device: device that this process trains on.
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
        """Let the present rest be sent; it must not change before the end of the transfer."""
        if self._rest is not None:
            return
        captured = capture(self._state, rng_state=False)
        rest = {name: each for name, each in captured.tensors.items() if name not in self._first}
        with self._changed:
            self._rest = rest, captured.pickles[VALUES], event_on(self._device)
            self._changed.notify_all()

    def send(self, connection: TransferGroups) -> None:
        """Send the state, in the thread.

        Raises:
            GivenUpError: the state is no longer needed.
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
                if self._is_given_up():  # then the chunk's source may have changed during the copy, too
                    raise GivenUpError
                connection.broadcast(chunk)


class Incoming:
    """A state that is received during the training of this process, and then replaces its state."""

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self._values = b""
        self._found: dict[str, tuple[TensorPart, Tensor]] = {}

    def receive(self, connection: TransferGroups) -> None:
        """Receive the state, in the thread."""
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
        """Receive the tensors of one type of device; if a GPU has too little memory, into host memory."""
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
        """Load the received state into the live one.

        Raises:
            MismatchError: it is of another model or optimizer.
        """

        @torch.no_grad()
        def fill(targets: dict[str, Tensor]) -> None:
            for name, target in targets.items():
                arrived = self._found[name][1]
                local_tensor(target).copy_(arrived)
                if arrived.device.type == "cuda":  # its memory belongs to the other stream
                    arrived.record_stream(torch.cuda.current_stream(arrived.device))

        restore(state, self._values, None, [part for part, _ in self._found.values()], fill)


def _room_on(device: torch.device) -> int:
    """Return the memory for a state on a GPU: half of the free memory, since training goes on."""
    free, _ = torch.cuda.mem_get_info(device)
    return (free + torch.cuda.memory_reserved(device) - torch.cuda.memory_allocated(device)) // 2


def _part(fields: dict[str, Any]) -> TensorPart:
    for name in ("shape", "global_shape", "global_offset"):
        if fields[name] is not None:
            fields[name] = tuple(fields[name])
    return TensorPart(**fields)


def _chunks(stream: TensorStream, tensors: list[Tensor]) -> Iterator[Tensor]:
    """Yield the bytes of a stream in chunks."""
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
