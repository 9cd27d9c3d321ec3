"""What the processes of a fleet train by DiLoCo, on a grid of numbers whose sums are exact."""

from __future__ import annotations

import json
import time
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from dlr.replicas.joining import join_over
from tests.replicas.scripts import Origin, digest, exact_step, model_of

GRID = 2.0**14
SYNC_EVERY = 5


class GridSGD(torch.optim.SGD):
    """SGD whose parameters stay multiples of 1 / GRID, so that differences and their sums are exact."""

    @torch.no_grad()
    def step(self, closure: Any = None) -> None:
        super().step(closure)
        for group in self.param_groups:
            for parameter in group["params"]:
                parameter.copy_((parameter * GRID).round() / GRID)


def inner_of(model: nn.Module) -> torch.optim.Optimizer:
    return GridSGD(model.parameters(), lr=0.25, momentum=0.5)


def outer_of(parameters: list[Tensor]) -> torch.optim.Optimizer:
    return GridSGD(parameters, lr=0.7, momentum=0.9, nesterov=True)


def rate(step: int) -> float:
    """A factor of the learning rate that depends on the inner step."""
    return 0.5 ** (step // 7 % 3)


def scheduler_of(optimizer: torch.optim.Optimizer) -> torch.optim.lr_scheduler.LRScheduler:
    return torch.optim.lr_scheduler.LambdaLR(optimizer, rate)


def grid_model(seed: int) -> nn.Module:
    model = model_of(seed)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.copy_((parameter * GRID).round() / GRID)
    return model


def train(place: Any, channel: Any, seconds: float = 0.004) -> None:
    """Train by rounds until the folder has a file `end`; write a line as each begins, and one before each ends."""
    origin = Origin(place)
    model = grid_model(origin.seed)
    optimizer = inner_of(model)
    scheduler = scheduler_of(optimizer)
    state = {"scheduler": scheduler, "origin": origin}
    joined = join_over(channel, model, optimizer, state=state, sync_every=SYNC_EVERY, outer=outer_of)
    log = (Path(place.folder) / f"log-{place.group}-{place.round}-{place.rank}").open("a")
    sources: list[int] = []
    end_heal = joined._end_heal

    def note_source() -> None:
        end_heal()
        quorum = joined._quorum()
        if quorum.is_behind:
            sources.append(quorum.membership.groups[quorum.agreement.leader][0])

    joined._end_heal = note_source  # type: ignore[method-assign]

    def write(**more: Any) -> None:
        line = {"group": place.group, "round": place.round, "rank": place.rank, "digest": digest(model)}
        log.write(json.dumps(line | more) + "\n")
        log.flush()

    def write_beginning(step: int) -> None:
        source = sources[-1] if sources else None
        sources.clear()
        groups = list(joined._at.averaged)
        write(begin=joined.applied, step=step, groups=groups, source=source, origin=origin.seed)

    ends = (Path(place.folder) / "end").exists
    for step in joined.steps(until=ends):
        if step % SYNC_EVERY == 0:
            write_beginning(step)
        time.sleep(seconds)
        optimizer.zero_grad()
        exact_step(model, step, place.group)
        optimizer.step()
        scheduler.step()
        if (step + 1) % SYNC_EVERY == 0:
            write(end=joined.applied)
    write_beginning(joined._at.steps_of_state)


def replay(
    steps: int,
    seed: int,
    groups_of: dict[int, list[int]],
    trained: dict[int, list[int]],
    sources: dict[tuple[int, int], int],
) -> list[str]:
    """The same in one process.

    Args:
        groups_of: indices of the groups in each outer step.
        trained: those that began each round.
        sources: index of the group whose state one took over before a round, by the round and its own index.

    Returns:
        digests of the global parameters as each round begins, and at the end.
    """
    model = grid_model(seed)
    outer = outer_of(list(model.parameters()))
    fresh = inner_of(model)
    scheduler = scheduler_of(fresh)
    inner = dict.fromkeys(range(10), (fresh.state_dict(), scheduler.state_dict()))
    digests = [digest(model)]
    for number in range(-(-steps // SYNC_EVERY)):
        inner |= {index: inner[source] for (at, index), source in sources.items() if at == number}
        start = [parameter.detach().clone() for parameter in model.parameters()]
        changes: dict[int, list[Tensor]] = {}
        for group in trained[number]:
            optimizer = inner_of(model)
            scheduler = scheduler_of(optimizer)
            optimizer.load_state_dict(_copied(inner[group][0]))
            scheduler.load_state_dict(inner[group][1])
            for step in range(number * SYNC_EVERY, min((number + 1) * SYNC_EVERY, steps)):
                optimizer.zero_grad()
                exact_step(model, step, group)
                optimizer.step()
                scheduler.step()
            inner[group] = optimizer.state_dict(), scheduler.state_dict()
            pairs = list(zip(start, model.parameters(), strict=True))
            changes[group] = [before - now.detach() for before, now in pairs]
            fill(model, start)
        outer.zero_grad()
        for at, parameter in enumerate(model.parameters()):
            total = sum(changes[group][at] for group in groups_of[number])
            parameter.grad = total / len(groups_of[number])  # type: ignore[assignment, operator]
        outer.step()
        digests.append(digest(model))
    return digests


@torch.no_grad()
def fill(model: nn.Module, values: list[Tensor]) -> None:
    for parameter, value in zip(model.parameters(), values, strict=True):
        parameter.copy_(value)


def _copied(state: dict[str, Any]) -> dict[str, Any]:
    """An optimizer's state that its steps do not change: `load_state_dict` keeps the tensors that it is given."""
    kept = {
        key: {name: value.clone() if isinstance(value, Tensor) else value for name, value in each.items()}
        for key, each in state["state"].items()
    }
    return {**state, "state": kept}
