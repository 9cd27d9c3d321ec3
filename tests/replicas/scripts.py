"""What the processes of a fleet train: with gradients whose sums are exact, so that a replay is bit by bit."""

from __future__ import annotations

import ctypes
import hashlib
import json
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import nn

from dlr.replicas.gradients import local
from dlr.replicas.joining import join_over

WIDTH = 16


def model_of(seed: int, width: int = WIDTH) -> nn.Module:
    torch.manual_seed(seed)
    return nn.Sequential(nn.Linear(width, width), nn.Tanh(), nn.Linear(width, width))


def digest(model: nn.Module) -> str:
    return digest_of(list(model.state_dict().values()))


def digest_of(tensors: Sequence[torch.Tensor]) -> str:
    whole = [each.detach().cpu().contiguous() for each in tensors]
    return hashlib.sha256(
        b"".join(ctypes.string_at(each.data_ptr(), each.nbytes) for each in whole)
    ).hexdigest()[:16]


def exact_step(model: nn.Module, step: int, group: int) -> None:
    """Backward through a loss whose gradient is what `fill_gradients` has."""
    generator = torch.Generator().manual_seed(step * 1_000 + group * 10)
    loss = torch.zeros((), device=next(model.parameters()).device)
    for parameter in model.parameters():
        noise = torch.randint(-64, 65, parameter.shape, generator=generator).float().to(parameter.device)
        seen = (parameter.detach() * 256).round().clamp(-64, 64)
        loss = loss + (parameter * ((noise + seen) / 1024)).sum()
    loss.backward()


def optimizer_of(model: nn.Module) -> torch.optim.Optimizer:
    return torch.optim.SGD(model.parameters(), lr=0.25, momentum=0.5)


def scheduler_of(optimizer: torch.optim.Optimizer) -> torch.optim.lr_scheduler.LRScheduler:
    """Rates that depend on how far training is."""
    return torch.optim.lr_scheduler.LambdaLR(optimizer, lambda epoch: 0.5 ** (epoch // 7 % 3))


class Origin:
    """The seed of the parameters that a group trains: its own, or that of the group whose state it has taken over."""

    def __init__(self, place: Any) -> None:
        self.seed = place.group * 100 + place.round  # alike at the ranks of a group

    def state_dict(self) -> dict[str, int]:
        return {"seed": self.seed}

    def load_state_dict(self, state: dict[str, int]) -> None:
        self.seed = state["seed"]


def train(
    place: Any,
    channel: Any,
    steps: int | None = 50,
    seconds: float = 0.005,
    width: int = WIDTH,
    device: str = "cpu",
) -> None:
    """Plain training; writes a line for each step that is committed.

    Args:
        steps: None to train until the folder has a file `end`, which each group sees at another time.
    """
    ends = (Path(place.folder) / "end").exists
    origin = Origin(place)
    model = model_of(origin.seed, width).to(device)
    optimizer = optimizer_of(model)
    scheduler = scheduler_of(optimizer)
    joined = join_over(channel, model, optimizer, state={"scheduler": scheduler, "origin": origin})
    log = (Path(place.folder) / f"log-{place.group}-{place.round}-{place.rank}").open("a")
    counted: dict[int, list[int]] = {}
    joined.call_after_commit(lambda step, groups: counted.__setitem__(step, list(groups)))
    for step in joined.steps(steps, until=ends if steps is None else None):
        optimizer.zero_grad()
        time.sleep(seconds)
        exact_step(model, step, place.group)
        optimizer.step()
        scheduler.step()
        line = {"group": place.group, "round": place.round, "rank": place.rank, "step": step}
        if joined.has_state:
            line |= {"groups": counted.get(step), "digest": digest(model), "time": time.monotonic()}
            line |= {"origin": origin.seed}
        log.write(json.dumps(line) + "\n")
        log.flush()
    assert not dist.is_initialized() or dist.get_world_size() == place.size


def replay(
    steps: int, groups_of: dict[int, list[int]], seed: int, width: int = WIDTH, device: str = "cpu"
) -> list[str]:
    """The same in one process, which knows whose gradients are in which step."""
    model = model_of(seed, width).to(device)
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


def train_sharded(place: Any, channel: Any, seconds: float = 0.01) -> None:
    """Train with FSDP2 within the group, until the folder has a file `end`."""
    from torch.distributed.fsdp import fully_shard

    ends = (Path(place.folder) / "end").exists
    model = fully_shard(model_of(seed=place.group * 100 + place.round))
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
    joined = join_over(channel, model, optimizer)
    log = (Path(place.folder) / f"log-{place.group}-{place.round}-{place.rank}").open("a")
    for step in joined.steps(until=ends):
        time.sleep(seconds)
        seed = step * 1_000 + place.group * 10 + place.rank
        inputs = torch.randn(4, WIDTH, generator=torch.Generator().manual_seed(seed))
        optimizer.zero_grad()
        model(inputs).square().mean().backward()
        optimizer.step()
        line = {"group": place.group, "round": place.round, "rank": place.rank, "step": step}
        if joined.has_state:
            line["digest"] = digest_of([local(each.detach()) for each in model.parameters()])
        log.write(json.dumps(line) + "\n")
        log.flush()
