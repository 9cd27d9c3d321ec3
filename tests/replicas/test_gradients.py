"""Gradients of all kinds, and those that would not be averaged over the groups."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn
from torch.distributed.fsdp import fully_shard
from torch.nn.parallel import DistributedDataParallel

from dlr import replicas as dlr_replicas
from dlr.replicas.gradients import buckets_of, scatter

INPUTS = torch.ones(2, 4)


def backward(model: nn.Module) -> None:
    loss: Tensor = model(INPUTS).square().mean()
    torch.autograd.backward(loss)


def train_with_closure(whole: nn.Module, model: nn.Module) -> None:
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for _ in dlr_replicas.join(whole, optimizer).steps(1):
        optimizer.step(lambda: backward(whole))


def train_in_turns(whole: nn.Module, model: nn.Module) -> None:
    """Compute the gradients of the second optimizer after the step of the first."""
    one, other = (torch.optim.SGD(part.parameters(), lr=0.1) for part in model.children())
    for _ in dlr_replicas.join(whole, [one, other]).steps(1):
        backward(whole)
        one.step()
        other.zero_grad()
        backward(whole)
        other.step()


def train_unfrozen(whole: nn.Module, model: nn.Module) -> None:
    frozen, other = (list(part.parameters()) for part in model.children())
    optimizer = torch.optim.SGD([*frozen, *other], lr=0.1)
    for parameter in frozen:
        parameter.requires_grad_(False)
    for _ in dlr_replicas.join(whole, optimizer).steps(1):
        for parameter in frozen:
            parameter.requires_grad_(True)
        backward(whole)
        optimizer.step()


def train_with_added(whole: nn.Module, model: nn.Module) -> None:
    one, other = (part.parameters() for part in model.children())
    optimizer = torch.optim.SGD(one, lr=0.1)
    for _ in dlr_replicas.join(whole, optimizer).steps(1):
        optimizer.add_param_group({"params": other})
        backward(whole)
        optimizer.step()


def unwrapped(model: nn.Module) -> nn.Module:
    return model


@pytest.mark.parametrize("wrap", [unwrapped, DistributedDataParallel, fully_shard])
@pytest.mark.parametrize(
    ("train", "sentence"),
    [
        (train_with_closure, "step.closure. computes gradients that are not averaged"),
        (train_in_turns, "computed after the average over the groups"),
        (train_unfrozen, "frozen or not in the optimizer when"),
        (train_with_added, "frozen or not in the optimizer when"),
    ],
)
def test_gradients_that_would_not_be_averaged_are_refused(
    wrap: Callable[[nn.Module], nn.Module],
    train: Callable[[nn.Module, nn.Module], None],
    sentence: str,
    process_group: None,
) -> None:
    model = nn.Sequential(nn.Linear(4, 4), nn.Linear(4, 4))
    with pytest.raises(RuntimeError, match=sentence):
        train(wrap(model), model)


def test_gradients_after_the_last_step_are_the_scripts_own() -> None:
    model = nn.Linear(4, 4)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for _ in dlr_replicas.join(model, optimizer).steps(1):
        backward(model)
        optimizer.step()
    backward(model)
    optimizer.step()


def test_gradients_of_inner_steps_are_the_groups_own() -> None:
    model = nn.Linear(4, 4)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    joined = dlr_replicas.join(
        model, optimizer, sync_every=2, outer=lambda parameters: torch.optim.SGD(parameters, lr=1.0)
    )
    for _ in joined.steps(5):
        optimizer.step(lambda: backward(model))
        backward(model)
        optimizer.step()


@pytest.mark.filterwarnings("ignore:Using backward")
def test_complex_gradients_and_those_with_a_graph_are_averaged() -> None:
    values = [1 + 2j, 3 - 4j]
    one, other = nn.Parameter(torch.tensor(values)), nn.Parameter(torch.tensor([[5.0], [6.0]]))
    torch.autograd.backward((one * one).sum().real + (other**3).sum(), create_graph=True)
    grads = [each.grad.detach().clone() for each in (one, other)]  # type: ignore[union-attr]
    (bucket,) = buckets_of([one, other])
    flat = bucket.gather()
    assert not flat.is_complex() and not flat.requires_grad
    scatter([bucket], [flat * 3], 2)
    for each, before in zip((one, other), grads, strict=True):
        assert each.grad is not None and torch.equal(each.grad.detach(), before * 1.5)
