"""Gradients of a step in which a group has no part."""

from __future__ import annotations

import pytest
import torch

from dlr.replicas.average import Average
from dlr.replicas.gradients import buckets_of, parameters_of


@pytest.mark.parametrize("scaled", [False, True])
@pytest.mark.parametrize("step_first", [False, True])
def test_dropped_gradients_change_nothing_with_a_grad_scaler_or_without(
    scaled: bool, step_first: bool
) -> None:
    model = torch.nn.Linear(4, 4)
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.1, weight_decay=0.5)
    scaler = torch.amp.GradScaler("cpu", enabled=scaled)
    average = Average(buckets_of(parameters_of([optimizer])))
    before = [each.detach().clone() for each in model.parameters()]

    def step(*, drops: bool) -> None:
        optimizer.zero_grad()
        scaler.scale(model(torch.ones(2, 4)).sum()).backward()
        if drops:
            average.drop(scaled=scaled)
        scaler.unscale_(optimizer)
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        scaler.step(optimizer)
        scaler.update()

    if step_first:
        step(drops=False)
        assert not all(map(torch.equal, before, model.parameters()))
        before = [each.detach().clone() for each in model.parameters()]
    step(drops=True)
    assert all(map(torch.equal, before, model.parameters()))
