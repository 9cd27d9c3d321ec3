"""Tensors that a slot can hold: plain ones, and a rank's part of a DTensor."""

from __future__ import annotations

import re
import sys
from typing import Any

import torch
from torch import Tensor, nn

from agent.slots.format import TensorPart

_WITHOUT_OPERATIONS = frozenset(
    dtype
    for name, dtype in vars(torch).items()
    if isinstance(dtype, torch.dtype) and re.fullmatch(r"u?int[1-7]|bits\d.*", name)
)
"""Dtypes that torch defines but cannot even copy."""


def part_of(name: str, tensor: Tensor, *, is_buffer: bool = False) -> TensorPart:
    """Describe a tensor, or this rank's part of a DTensor."""
    local = local_tensor(tensor)
    global_shape = global_offset = None
    if is_distributed(tensor):
        global_shape = tuple(tensor.shape)
        chunks = tensor.__create_chunk_list__()  # type: ignore[attr-defined]  # DCP's protocol for such tensors
        global_offset = tuple(chunks[0].offsets)
    return TensorPart(
        name,
        str(local.dtype).removeprefix("torch."),
        tuple(local.shape),
        local.numel() * local.element_size(),
        global_shape,
        global_offset,
        is_buffer,
    )


def check_placements(name: str, tensor: Tensor) -> None:
    """Make sure that a rank's part of a DTensor matches its placements.

    If FSDP shards a dimension that tensor parallelism has sharded unevenly, torch 2.13 computes other
    boundaries from the placements than it has sharded by.

    Raises:
        ValueError: the part does not match, so its position is unclear; or the tensor's mesh lacks the rank.
    """
    if not is_distributed(tensor):
        return
    here = local_tensor(tensor).shape
    chunk = tensor.__create_chunk_list__()[0]  # type: ignore[attr-defined]
    if {len(chunk.offsets), len(chunk.sizes)} != {tensor.dim()}:
        raise ValueError(
            f"{name} is a DTensor whose mesh is without this rank: keep it out of the state here"
        )
    if here != chunk.sizes:
        raise ValueError(
            f"{name} is {list(here)} on this rank, and {list(chunk.sizes)} by its placements: where FSDP and "
            "tensor parallelism both cut a dimension, make its size a multiple of the number of its parts"
        )


def is_distributed(tensor: object) -> bool:
    """Whether it is a DTensor, as in FSDP2 and tensor parallelism."""
    module = sys.modules.get("torch.distributed.tensor")  # imported wherever there is a DTensor
    return module is not None and isinstance(tensor, module.DTensor)


def local_tensor(tensor: Tensor) -> Tensor:
    """Return the tensor, or this rank's part of a DTensor, detached."""
    tensor = tensor.detach()
    return tensor.to_local() if is_distributed(tensor) else tensor  # type: ignore[attr-defined]


def empty_like(tensor: Tensor, dtype: torch.dtype | None = None) -> Tensor:
    """Return an uninitialized tensor of the same shape and placement, without gradient.

    Args:
        dtype: of the new tensor; None for the same.
    """
    present: Any = tensor
    local = local_tensor(tensor)
    # torch takes 10 ms for each shape in a new process to derive the placement, which `from_local` takes as
    # given; but that moves to the mesh's device what is offloaded, and gives no strides to what is a view.
    is_plain = (
        is_distributed(tensor)
        and local.device.type == present.device_mesh.device_type
        and local.is_contiguous()
        and present.is_contiguous()
    )
    if not is_plain:
        return torch.empty_like(tensor, dtype=dtype, requires_grad=False)
    made: Tensor = type(present).from_local(
        *(torch.empty_like(local, dtype=dtype), present.device_mesh, present.placements),
        run_check=False,
        shape=present.shape,
        stride=present.stride(),
    )
    return made


def repeats_elements(tensor: Tensor) -> bool:
    """Whether elements share memory, as after `expand`, so that the tensor cannot be copied into."""
    tensor, reach = local_tensor(tensor), 0
    for stride, size in sorted(zip(tensor.stride(), tensor.shape, strict=True)):
        if size > 1:
            if stride <= reach:
                return True
            reach += stride * (size - 1)
    return False


def is_copied(value: object) -> bool:
    """Whether it is a tensor that a slot can hold. Sparse tensors are pickled instead."""
    if type(value) in (Tensor, nn.Parameter):
        if value.layout is not torch.strided or value.is_quantized or value.is_nested:  # type: ignore[attr-defined]
            return False
        if value.device.type == "meta":  # type: ignore[attr-defined]
            return False
        return value.dtype not in _WITHOUT_OPERATIONS  # type: ignore[attr-defined]
    return is_distributed(value)
