"""Exchange of values between the ranks of a process group; without a group, this process is the only rank.

torch's own object collectives unpickle the received data, which may run the sender's code. These functions
send JSON, so tuples become lists, and keys become strings.
"""

from __future__ import annotations

import ctypes
import json
from typing import Any

import torch
import torch.distributed as dist

MOST_BYTES = 1 << 30
"""Most bytes that a rank receives in one exchange."""
NO_JSON = -1
"""Size of a value that its rank cannot send."""


def are_connected() -> bool:
    """Whether there is a process group."""
    return dist.is_available() and dist.is_initialized()


def from_rank_0(value: object, group: dist.ProcessGroup | None = None) -> Any:
    """Return rank 0's value, on all ranks. All ranks call it.

    Args:
        group: group of the ranks; None for the default one.

    Raises:
        ValueError: the value is no JSON of at most MOST_BYTES; raised on all ranks.
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
        ValueError: a value is no JSON, or all together exceed MOST_BYTES; raised on all ranks.
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
    """Return the device for the group's tensors: the CPU if a backend supports it, or the current GPU."""
    config = dist.distributed_c10d.get_backend_config(group)  # such as "cpu:gloo,cuda:nccl"
    types = [entry.partition(":")[0] for entry in config.split(",")]
    return torch.device("cpu" if "cpu" in types else types[0])


def _text(value: object) -> bytes:
    try:
        return json.dumps(value, separators=(",", ":")).encode()
    except (TypeError, ValueError, RecursionError) as error:
        raise ValueError(f"a value for other ranks is no JSON: {error}") from error


def _text_or_error(value: object) -> tuple[bytes, ValueError | None]:
    """Return the JSON, or the error, of which the waiting ranks have to learn, too."""
    try:
        return _text(value), None
    except ValueError as error:
        return b"", error


def _check(lengths: list[int], size: int, own_error: ValueError | None) -> None:
    """Raise ValueError, on all ranks, if a value is no JSON, or `size` is too large.

    Args:
        lengths: length of each rank's value, in bytes.
        size: size of the whole exchange, in bytes.
        own_error: error of this rank's value.
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
