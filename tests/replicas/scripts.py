"""What the processes of a fleet train: with gradients whose sums are exact, so that a replay is bit by bit."""

from __future__ import annotations

import hashlib
import json
import time
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import nn

from dlr import replicas as dlr_replicas

WIDTH = 16


def model_of(seed: int, width: int = WIDTH) -> nn.Module:
    torch.manual_seed(seed)
    return nn.Sequential(nn.Linear(width, width), nn.Tanh(), nn.Linear(width, width))


def digest(model: nn.Module) -> str:
    tensors = model.state_dict().values()
    return hashlib.sha256(b"".join(each.detach().numpy().tobytes() for each in tensors)).hexdigest()[:16]


def exact_step(model: nn.Module, step: int, group: int) -> None:
    """Backward through a loss whose gradient is what `fill_gradients` has."""
    generator = torch.Generator().manual_seed(step * 1_000 + group * 10)
    loss = torch.zeros(())
    for parameter in model.parameters():
        noise = torch.randint(-64, 65, parameter.shape, generator=generator).float()
        seen = (parameter.detach() * 256).round().clamp(-64, 64)
        loss = loss + (parameter * ((noise + seen) / 1024)).sum()
    loss.backward()


def optimizer_of(model: nn.Module) -> torch.optim.Optimizer:
    return torch.optim.SGD(model.parameters(), lr=0.25, momentum=0.5)


def scheduler_of(optimizer: torch.optim.Optimizer) -> torch.optim.lr_scheduler.LRScheduler:
    """Rates that depend on how far training is."""
    return torch.optim.lr_scheduler.LambdaLR(optimizer, lambda epoch: 0.5 ** (epoch // 7 % 3))


def train(place: Any, channel: Any, steps: int = 50, seconds: float = 0.005, width: int = WIDTH) -> None:
    """Plain training; writes a line for each step that is committed."""
    model = model_of(seed=place.group * 100 + place.round, width=width)  # alike at the ranks of a group
    optimizer = optimizer_of(model)
    scheduler = scheduler_of(optimizer)
    joined = dlr_replicas.join(model, optimizer, state={"scheduler": scheduler}, channel=channel)
    log = (Path(place.folder) / f"log-{place.group}-{place.round}-{place.rank}").open("a")
    counted: dict[int, list[int]] = {}
    joined.call_after_commit(lambda step, groups: counted.__setitem__(step, list(groups)))
    for step in joined.steps(steps):
        optimizer.zero_grad()
        time.sleep(seconds)
        exact_step(model, step, place.group)
        optimizer.step()
        scheduler.step()
        line = {"group": place.group, "round": place.round, "rank": place.rank, "step": step}
        if joined._member.trained:
            line |= {"groups": counted.get(step), "digest": digest(model), "time": time.monotonic()}
            line |= {"version": joined._current().membership.version}
        log.write(json.dumps(line) + "\n")
        log.flush()
    assert not dist.is_initialized() or dist.get_world_size() == place.size


def replay(steps: int, groups_of: dict[int, list[int]], seed: int, width: int = WIDTH) -> list[str]:
    """The same in one process, which knows whose gradients are in which step."""
    model = model_of(seed, width)
    optimizer = optimizer_of(model)
    scheduler = scheduler_of(optimizer)
    digests = []
    for step in range(steps):
        sums: list[torch.Tensor] = []
        for group in groups_of[step]:
            optimizer.zero_grad()
            exact_step(model, step, group)
            grads = [parameter.grad.clone() for parameter in model.parameters()]  # type: ignore[union-attr]
            sums = [a + b for a, b in zip(sums, grads, strict=True)] if sums else grads
        for parameter, total in zip(model.parameters(), sums, strict=True):
            parameter.grad = total / len(groups_of[step])
        optimizer.step()
        scheduler.step()
        digests.append(digest(model))
    return digests
