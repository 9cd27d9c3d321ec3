"""A loop over steps in a process that lives on: its waits end with the round, and it begins the next one."""

from __future__ import annotations

import random
from functools import partial
from types import SimpleNamespace
from typing import Any

import numpy
import pytest
import torch

import dlr.replicas
from agent.survival.client import RoundOverError
from dlr.replicas.channel import Alone
from dlr.replicas.group import OwnGroup
from dlr.replicas.news import GroupVersions
from dlr.replicas.training_step import Mortal


class Lives(Mortal):
    """A process whose round ends in some steps, of those that its script has made so far."""

    def __init__(self, *ends: int) -> None:
        self.made: list[int] = []
        self._ends = [*ends]

    def next_round(self) -> bool:
        if is_over := len(self.made) in self._ends:
            self._ends.remove(len(self.made))
            self.training.begin_round()
        return is_over


def join(process: Lives, loads: int, **arguments: Any) -> tuple[Any, torch.nn.Module, torch.optim.Optimizer]:
    """Join alone, with a checkpoint of that step from the first new round on."""
    model = torch.nn.Linear(2, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.5)
    training: Any = dlr.replicas.join(model, optimizer, **arguments)
    training._process, process.training = process, training
    training._checkpoint = SimpleNamespace(join=lambda *_: loads, wait=lambda: None)
    return training, model, optimizer


def test_all_waits_for_other_groups_end_with_the_round() -> None:
    over = [False]
    channel = Alone()
    news = GroupVersions(channel, OwnGroup(), lambda: over[0])
    assert not news.is_overtaken(channel.membership.version)
    assert news.await_membership(1, has_met=False) == channel.membership
    over[0] = True
    assert news.is_overtaken(channel.membership.version)
    with pytest.raises(RoundOverError):
        news.await_membership(1, has_met=False)


def test_what_the_script_does_after_its_round_is_over_counts_for_nobody_and_generators_begin_again() -> None:
    process = Lives(2)
    training, model, optimizer = join(process, loads=1)
    drawn = []
    for step in training.steps(4):
        process.made.append(int(step))
        drawn.append((random.random(), float(torch.rand(())), numpy.random.random()))
        if len(process.made) == 2:
            training.leave_round()
        model(torch.ones(1, 2)).sum().backward()
        optimizer.step()
        optimizer.zero_grad()
    assert process.made == [0, 1, 1, 2, 3]
    assert drawn[2:4] == drawn[:2], "where the loop has found them"
    woken: list[str] = []
    training._meetings.news.notify = lambda: woken.append("those that wait")
    training.wake()
    assert woken == ["those that wait"]


def test_inner_steps_begin_again_with_the_checkpoints_and_its_parameters_are_the_global_ones() -> None:
    process = Lives(5)
    outer = partial(torch.optim.SGD, lr=1.0)
    training, model, optimizer = join(process, loads=3, sync_every=3, outer=outer)
    for step in training.steps(6):
        process.made.append(int(step))
        if len(process.made) == 6:
            begun = [each.detach().clone() for each in model.parameters()]
        optimizer.zero_grad()
        model(torch.ones(1, 2)).sum().backward()
        optimizer.step()
    assert process.made == [0, 1, 2, 3, 4, 3, 4, 5]
    for before, after in zip(begun, model.parameters(), strict=True):
        torch.testing.assert_close(before - after, torch.full_like(before, 1.5))  # three steps by 0.5


def test_an_outer_optimizer_that_no_checkpoint_has_is_as_it_was_made() -> None:
    """As that of a newcomer is."""
    process = Lives(4)
    outer = partial(torch.optim.SGD, lr=0.7, momentum=0.9)
    training, model, optimizer = join(process, loads=2, sync_every=2, outer=outer)
    momenta = []
    for step in training.steps(6):
        process.made.append(int(step))
        momenta.append(bool(training._global.optimizer.state_dict()["state"]))
        optimizer.zero_grad()
        model(torch.ones(1, 2)).sum().backward()
        optimizer.step()
    assert process.made == [0, 1, 2, 3, 2, 3, 4, 5]
    assert momenta == [False, False, True, True, False, False, True, True]
