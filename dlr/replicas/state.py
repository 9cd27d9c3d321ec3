"""What the groups have in common besides models and optimizers. Pure."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from torch import nn


def further(checkpoint: Mapping[str, Any], shared: Mapping[str, Any]) -> dict[str, Any]:
    """Return what a checkpoint has with a state of its own that the groups do not share yet, by new names.

    A module is shared where one is that has it, or that it has, as DistributedDataParallel has a model.
    """
    there = {id(part) for thing in shared.values() for part in _parts(thing)}
    return {
        f"checkpoint_{name}": thing
        for name, thing in checkpoint.items()
        if hasattr(thing, "load_state_dict") and there.isdisjoint(map(id, _parts(thing)))
    }


def _parts(thing: object) -> Iterator[object]:
    yield thing
    if isinstance(thing, nn.Module):
        yield from thing.modules()
