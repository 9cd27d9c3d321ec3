"""What the processes of a fleet train by DiLoCo, on a grid of numbers whose sums are exact."""

from __future__ import annotations

import json
import os
import signal
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from dlr import replicas as dlr_replicas
from dlr.replicas.exchange import BrokenError, Exchange
from dlr.replicas.gradients import local
from dlr.replicas.replicas import Version
from tests.replicas.scripts import WIDTH, digest, digest_of, exact_step, model_of

GRID = 2.0**14


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


def _fault(joined: Any, what: str, at: int, first_log: Path) -> None:
    """Have this process fail in the outer step `at`: die at some point of it, or miss that all agree.

    Args:
        first_log: of group 0, which is to know that all agree before another one misses it.
    """
    vote = Exchange.vote

    def await_first() -> None:
        while f'"begin": {at + 1},' not in first_log.read_text():
            time.sleep(0.005)

    def die() -> None:
        os.kill(os.getpid(), signal.SIGKILL)

    def voting(exchange: Exchange, *, ends: bool = False) -> bool:
        if joined.applied != at or not joined._is_open:
            return vote(exchange, ends=ends)
        if what == "before the vote":
            die()
        vote(exchange, ends=ends)
        if what == "after the vote":
            die()
        await_first()
        if what == "once the first has it":
            die()
        Exchange.vote = vote  # type: ignore[method-assign]
        raise BrokenError("as the test has it")

    Exchange.vote = voting  # type: ignore[method-assign]


def train(
    place: Any,
    channel: Any,
    steps: int | None,
    sync_every: int,
    seconds: float = 0.004,
    faults: dict[int, tuple[str, int]] | None = None,
    outer: Callable[[list[Tensor]], torch.optim.Optimizer] = outer_of,
    momentum: float = 0.5,
) -> None:
    """Train by rounds; write a line as each begins, one before each ends, and one at the end.

    Args:
        steps: None to train until the folder has a file `end`.
        faults: what fails, and in which outer step, by group; of its first processes.
    """
    model = grid_model(place.group * 100 + place.round)
    optimizer = GridSGD(model.parameters(), lr=0.25, momentum=momentum)
    scheduler = scheduler_of(optimizer)
    joined = dlr_replicas.join(
        model, optimizer, state={"scheduler": scheduler}, channel=channel, sync_every=sync_every, outer=outer
    )
    fault = (faults or {}).get(place.group)
    if fault is not None and place.round == place.group + 1:
        _fault(joined, *fault, Path(place.folder) / "log-0-1-0")
    log = (Path(place.folder) / f"log-{place.group}-{place.round}-{place.rank}").open("a")
    sources: list[int] = []
    begin = joined._begin

    def note_source(version: Version) -> None:
        begin(version)
        if version.is_behind():
            sources.append(version.membership.groups[version.agreement.leader][0])

    joined._begin = note_source  # type: ignore[method-assign]

    def write(**more: Any) -> None:
        line = {"group": place.group, "round": place.round, "rank": place.rank, "digest": digest(model)}
        log.write(json.dumps(line | more) + "\n")
        log.flush()

    def write_beginning(step: int) -> None:
        source = sources[-1] if sources else None
        sources.clear()
        write(begin=joined.applied, step=step, groups=list(joined._averaged), source=source)

    ends = (Path(place.folder) / "end").exists
    for step in joined.steps(steps, until=ends if steps is None else None):
        if step % sync_every == 0:
            write_beginning(step)
        time.sleep(seconds)
        optimizer.zero_grad()
        exact_step(model, step, place.group)
        optimizer.step()
        scheduler.step()
        if (step + 1) % sync_every == 0:
            write(end=joined.applied)
    write_beginning(joined._steps_of_state())


def replay(
    steps: int,
    sync_every: int,
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
    for number in range(-(-steps // sync_every)):
        inner |= {index: inner[source] for (at, index), source in sources.items() if at == number}
        start = [parameter.detach().clone() for parameter in model.parameters()]
        changes: dict[int, list[Tensor]] = {}
        for group in trained[number]:
            optimizer = inner_of(model)
            scheduler = scheduler_of(optimizer)
            optimizer.load_state_dict(_copied(inner[group][0]))
            scheduler.load_state_dict(inner[group][1])
            for step in range(number * sync_every, min((number + 1) * sync_every, steps)):
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


def train_kind(place: Any, channel: Any, kind: str, sync_every: int) -> None:
    """Train until the folder has a file `end`: DDP or FSDP2 within the group, with the optimizers of the paper."""
    ends = (Path(place.folder) / "end").exists
    model = model_of(seed=place.group * 100 + place.round)
    if kind == "ddp":
        model = nn.parallel.DistributedDataParallel(model, gradient_as_bucket_view=True)
    elif kind == "fsdp2":
        from torch.distributed.fsdp import fully_shard

        model = fully_shard(model)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
    joined = dlr_replicas.join(
        model,
        optimizer,
        channel=channel,
        sync_every=sync_every,
        outer=lambda parameters: torch.optim.SGD(parameters, lr=0.7, momentum=0.9, nesterov=True),
    )
    log = (Path(place.folder) / f"log-{place.group}-{place.round}-{place.rank}").open("a")
    for step in joined.steps(until=ends):
        time.sleep(0.004)
        line = {"group": place.group, "round": place.round, "rank": place.rank, "step": step}
        line["digest"] = digest_of([local(each.detach()) for each in model.parameters()])
        log.write(json.dumps(line) + "\n")
        log.flush()
        seed = step * 1_000 + place.group * 10 + place.rank
        inputs = torch.randn(4, WIDTH, generator=torch.Generator().manual_seed(seed))
        optimizer.zero_grad()
        model(inputs).square().mean().backward()
        optimizer.step()
