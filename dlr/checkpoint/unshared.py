"""Tensors that ranks hold under one name with contents of their own, as by tensor or pipeline parallelism
without DTensors. Nothing but their contents tells them from those that all ranks share.

Sums say which tensors differ. Buffers may, as BatchNorm's do. All others of data parallelism differ a little
where ranks have different hardware, whose rounding errors add up; what rank 0 has stands for all of these.
Where any tensor differs by more, ranks train different things: then each rank keeps its own of all of them.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence

import torch
from torch import Tensor

from dlr.checkpoint.plan import Piece, Place

Digest = list[float]
"""Sums of the parts of a tensor."""

ROUNDING = 0.01
"""Digests that differ by a smaller share are of the same tensor. Gradients are the same on all ranks of data
parallelism, so that rounding is far below it."""
_PARTS = 32
_AT_ONCE = 1 << 20
"""Elements of which there are double-precision copies at a time."""


def digest(tensor: Tensor) -> Digest | None:
    """Sum up a tensor in parts; None where its numbers are no floating-point ones, which have no rounding."""
    if tensor.is_complex():
        tensor = torch.view_as_real(tensor)
    if not tensor.is_floating_point():
        return None
    parts = tensor.reshape(-1).tensor_split(_PARTS)
    return [
        sum((piece.double().sum().item() for piece in torch.split(part, _AT_ONCE)), 0.0) for part in parts
    ]


def differing(pieces: Mapping[int, Sequence[Piece]]) -> set[str]:
    """Names of tensors, but for buffers, of which ranks hold the same part with different contents.

    Args:
        pieces: of each rank.
    """
    return {piece.name for piece, _ in _pairs(pieces)}


def different_pair(pieces: Mapping[int, Sequence[Piece]], name: str) -> dict[int, Sequence[Piece]]:
    """Return a part of that tensor which two ranks hold with different contents, by rank."""
    return next(pair for piece, pair in _pairs(pieces) if piece.name == name)


def own_of_each(
    pieces: Mapping[int, Sequence[Piece]], digests: Mapping[int, Mapping[str, Digest | None]]
) -> set[str]:
    """Names of the tensors of which each rank has its own.

    Args:
        pieces: of each rank.
        digests: likewise, of the tensors that are `differing`.
    """
    names, rounded, is_far = differing(pieces), set[str](), False
    for piece, pair in _pairs(pieces):
        one, other = (digests[rank][piece.name] for rank in pair)
        if one is None or other is None:
            continue
        rounded.add(piece.name)
        (first,), (second,) = pair.values()
        is_far = is_far or first.shape != second.shape or not _is_close(one, other)
    return names if is_far else names - rounded


def _pairs(pieces: Mapping[int, Sequence[Piece]]) -> Iterator[tuple[Piece, dict[int, Sequence[Piece]]]]:
    """Each piece that differs from that of the first rank that has it, and both by rank."""
    first: dict[Place, tuple[int, Piece]] = {}
    for rank, of_rank in pieces.items():
        for piece in of_rank:
            if piece.is_buffer or piece.is_nothing:
                continue
            first_rank, known = first.setdefault(piece.place, (rank, piece))
            if piece.content != known.content:
                yield piece, {first_rank: [known], rank: [piece]}


def _is_close(one: Digest, other: Digest) -> bool:
    return math.dist(one, other) <= ROUNDING * math.hypot(*one)
