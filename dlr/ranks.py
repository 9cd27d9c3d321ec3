"""Exchange of values between the ranks of a process group; one process without any is all there is.

torch's own collectives of objects unpickle what they receive, which may run code of the sender's. These send
JSON, so a value comes back as JSON has it: tuples are lists, and keys are texts.
"""

from __future__ import annotations

import ctypes
import json
from typing import Any

import torch
import torch.distributed as dist

MOST_BYTES = 1 << 30
"""Greatest size of all that one exchange brings to a rank."""
NO_JSON = -1
"""In place of a value's size: its rank cannot send it."""


def are_connected() -> bool:
    """Whether there is a process group."""
    return dist.is_available() and dist.is_initialized()


def from_rank_0(value: object, group: dist.ProcessGroup | None = None) -> Any:
    """Return rank 0's value, on all ranks. All ranks call it.

    Args:
        group: of the ranks; None for the default one.

    Raises:
        ValueError: it is no JSON of at most MOST_BYTES; on all ranks.
    """
    if not are_connected():
        return json.loads(_text(value))
    device, first = _device(group), 0 if group is None else dist.get_global_rank(group, 0)
    text, error = _text_or_error(value) if dist.get_rank(group) == 0 else (b"", None)
    size = torch.tensor([NO_JSON if error else len(text)], device=device)
    dist.broadcast(size, first, group)
    _check([int(size)], int(size), error)
    data = _padded(text, int(size), device)
    dist.broadcast(data, first, group)
    return _parsed(data)


def from_all(value: object, group: dist.ProcessGroup | None = None) -> list[Any]:
    """Return the values of all ranks, in their order. All ranks call it.

    Args:
        group: as above.

    Raises:
        ValueError: one is no JSON, or together they are larger than MOST_BYTES; on all ranks.
    """
    if not are_connected():
        return [json.loads(_text(value))]
    text, error = _text_or_error(value)
    device, ranks = _device(group), dist.get_world_size(group)
    sizes = [torch.zeros(1, dtype=torch.int64, device=device) for _ in range(ranks)]
    dist.all_gather(sizes, torch.tensor([NO_JSON if error else len(text)], device=device), group)
    lengths = [int(size) for size in sizes]
    longest = max(lengths)
    _check(lengths, ranks * longest, error)
    parts = [torch.empty(longest, dtype=torch.uint8, device=device) for _ in range(ranks)]
    dist.all_gather(parts, _padded(text, longest, device), group)
    return [_parsed(part[:length]) for part, length in zip(parts, lengths, strict=True)]


def _device(group: dist.ProcessGroup | None) -> torch.device:
    """The current device of a type that the group's backends exchange tensors of; the CPU, if it is one."""
    config = dist.distributed_c10d.get_backend_config(group)  # such as "cpu:gloo,cuda:nccl"
    types = [entry.partition(":")[0] for entry in config.split(",")]
    return torch.device("cpu" if "cpu" in types else types[0])


def _text(value: object) -> bytes:
    try:
        return json.dumps(value, separators=(",", ":")).encode()
    except (TypeError, ValueError, RecursionError) as error:
        raise ValueError(f"a value for other ranks is no JSON: {error}") from error


def _text_or_error(value: object) -> tuple[bytes, ValueError | None]:
    """The text, or why there is none: the other ranks have to learn that too, since they wait for it."""
    try:
        return _text(value), None
    except ValueError as error:
        return b"", error


def _check(lengths: list[int], size: int, own_error: ValueError | None) -> None:
    """Raise ValueError on all ranks where one has no JSON, or `size` bytes are too many.

    Args:
        lengths: of the values, by rank.
        size: of the whole exchange.
        own_error: why this rank's value has no JSON.
    """
    if own_error is not None:
        raise own_error
    if min(lengths) < 0:
        raise ValueError(f"rank {lengths.index(min(lengths))} has a value that is no JSON: see its error")
    if size > MOST_BYTES:
        raise ValueError(
            f"the exchange takes {size} bytes on each rank and may take {MOST_BYTES}: pass smaller values"
        )


def _padded(text: bytes, size: int, device: torch.device) -> torch.Tensor:
    data = torch.zeros(size, dtype=torch.uint8, device="cpu")
    data[: len(text)] = torch.frombuffer(bytearray(text), dtype=torch.uint8) if text else data[:0]
    return data.to(device)


def _parsed(data: torch.Tensor) -> Any:
    data = data.cpu()
    try:
        return json.loads(ctypes.string_at(data.data_ptr(), data.numel()))  # NumPy may not be installed
    except (ValueError, RecursionError) as error:
        raise ValueError(f"what a rank has sent is no JSON: {error}") from error
