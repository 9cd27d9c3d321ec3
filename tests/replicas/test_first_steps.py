"""What a spare process makes ahead of its first step."""

from __future__ import annotations

from typing import Any

import torch
from torch import nn
from torch.optim.optimizer import register_optimizer_step_pre_hook

from dlr.replicas.first_steps import prepare_steps


class Collective(torch.optim.SGD):
    """Its step may need other ranks."""


def steps_of(*optimizers: torch.optim.Optimizer) -> list[tuple[Any, list[torch.Size]]]:
    """Prepare, and return who made a step: its learning rate and the shapes of its parameters."""
    made = []

    def note(optimizer: Any, *_: Any) -> None:
        (group,) = optimizer.param_groups
        made.append((group["lr"], [each.shape for each in group["params"]]))

    hook = register_optimizer_step_pre_hook(note)
    try:
        prepare_steps(optimizers)
    finally:
        hook.remove()
    return made


def test_stand_ins_make_a_step_a_shape_and_group_and_the_training_is_as_it_was() -> None:
    torch.manual_seed(0)
    net = nn.Sequential(nn.Linear(3, 3), nn.Linear(3, 3), nn.Linear(3, 1))
    net[2].bias.requires_grad_(False)
    before = {name: each.clone() for name, each in net.state_dict().items()}
    optimizer = torch.optim.AdamW(
        [{"params": net[:2].parameters(), "lr": 0.5}, {"params": net[2].parameters()}]
    )
    assert steps_of(optimizer) == [(0.5, [(3, 3), (3,)]), (0.001, [(1, 3)])]
    assert not optimizer.state and all(each.grad is None for each in net.parameters())
    assert all(torch.equal(before[name], each) for name, each in net.state_dict().items())


def test_an_optimizer_whose_step_may_need_other_ranks_makes_none() -> None:
    assert steps_of(Collective(nn.Linear(2, 2).parameters())) == []
