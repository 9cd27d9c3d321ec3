"""Warm-up of optimizers: torch prepares each operation on DTensors at the first use of a shape."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any

import torch
from torch import Tensor
from torch.optim import SGD, Adadelta, Adagrad, Adam, Adamax, AdamW, NAdam, Optimizer, RAdam, RMSprop

ELEMENTWISE = {Adadelta, Adagrad, Adam, Adamax, AdamW, NAdam, RAdam, RMSprop, SGD}
"""Optimizers whose steps need no communication, whatever the placements: groups are not connected yet."""


def prepare_steps(optimizers: Iterable[Optimizer]) -> None:
    """Make a step with a stand-in for each shape of a parameter; the parameters themselves do not change."""
    for optimizer in optimizers:
        if type(optimizer) in ELEMENTWISE:
            for group in optimizer.param_groups:
                options = {name: value for name, value in group.items() if name in optimizer.defaults}
                _make_step(type(optimizer), options, [*_one_a_shape(group["params"])])


def _one_a_shape(parameters: Iterable[Tensor]) -> Iterator[Tensor]:
    found = set()
    for each in parameters:
        key = each.shape, each.dtype, each.device, getattr(each, "placements", None)
        if each.requires_grad and key not in found:
            found.add(key)
            yield each


def _make_step(kind: Any, options: dict[str, Any], parameters: list[Tensor]) -> None:
    stand_ins = [torch.zeros_like(each, requires_grad=True) for each in parameters]
    for each in stand_ins:
        each.grad = torch.zeros_like(each)
    if stand_ins:
        optimizer = kind(stand_ins)
        optimizer.param_groups[0].update(options)
        optimizer.step()
