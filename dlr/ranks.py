"""What the ranks of the default process group tell each other; without one, this process is all there is.

With NCCL alone, collectives of objects need `torch.cuda.set_device` before.
"""

from __future__ import annotations

from typing import Any, TypeVar

import torch.distributed as dist

T = TypeVar("T")


def are_connected() -> bool:
    """Whether there is a process group."""
    return dist.is_available() and dist.is_initialized()


def from_rank_0(value: T) -> T:
    """What rank 0 has. All ranks call it."""
    if not are_connected():
        return value
    box = [value]
    dist.broadcast_object_list(box, src=0)
    return box[0]


def from_all(value: T) -> list[T]:
    """What each rank has, in their order. All ranks call it."""
    if not are_connected():
        return [value]
    values: list[Any] = [None] * dist.get_world_size()
    dist.all_gather_object(values, value)
    return values
