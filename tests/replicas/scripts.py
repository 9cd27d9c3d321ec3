"""What the processes of a fleet train: with gradients whose sums are exact, so that a replay is bit by bit."""

from __future__ import annotations

import contextlib
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

from crds import grouping
from dlr import replicas as dlr_replicas
from dlr.replicas import patience
from dlr.replicas.gradients import local

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


def hasten(seconds: float) -> None:
    """Have this process's patience with late groups be so short."""
    grouping.LEAST_PATIENCE_SECONDS = grouping.FIRST_STEP_PATIENCE_SECONDS = seconds
    patience.QUIET_SECONDS, patience.TICK_SECONDS = seconds / 2, seconds / 20


def train(
    place: Any,
    channel: Any,
    steps: int | None = 50,
    seconds: float = 0.005,
    width: int = WIDTH,
    device: str = "cpu",
    patience_seconds: float = 0.0,
) -> None:
    """Plain training; writes a line for each step that is committed.

    Args:
        steps: None to train until the folder has a file `end`, which each group sees at another time.
        patience_seconds: with late groups; 0 for the usual one.
    """
    if patience_seconds:
        hasten(patience_seconds)
    ends = (Path(place.folder) / "end").exists
    model = model_of(seed=place.group * 100 + place.round, width=width)  # alike at the ranks of a group
    model = model.to(device)
    optimizer = optimizer_of(model)
    scheduler = scheduler_of(optimizer)
    joined = dlr_replicas.join(model, optimizer, state={"scheduler": scheduler}, channel=channel)
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
            line |= {"version": joined._quorum().version}
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


def train_kind(place: Any, channel: Any, kind: str, seconds: float = 0.01) -> None:
    """Train as scripts do, until the folder has a file `end`.

    With DDP or FSDP2 within the group, clipping, accumulation, scaled losses, learning rates that are set before
    the backward.
    """
    ends = (Path(place.folder) / "end").exists
    plain = model_of(seed=place.group * 100 + place.round)
    model: nn.Module = plain
    if kind == "ddp":
        model = nn.parallel.DistributedDataParallel(plain)
    elif kind == "fsdp2":
        from torch.distributed.fsdp import fully_shard

        model = fully_shard(plain)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
    scaler = torch.amp.GradScaler("cpu", init_scale=4.0, enabled=kind == "scaler")
    joined = dlr_replicas.join(model, optimizer, state={"scaler": scaler}, channel=channel)
    log = (Path(place.folder) / f"log-{place.group}-{place.round}-{place.rank}").open("a")
    for step in joined.steps(until=ends):
        optimizer.zero_grad()
        if kind == "rates":
            for group in optimizer.param_groups:
                group["lr"] = 1e-2 / (1 + step % 7)
        time.sleep(seconds)
        parts = 2 if kind == "accumulate" else 1
        for part in range(parts):
            seed = step * 1_000 + place.group * 10 + place.rank * 2 + part
            inputs = torch.randn(4, WIDTH, generator=torch.Generator().manual_seed(seed))
            is_last = part == parts - 1
            with contextlib.nullcontext() if is_last else joined.accumulate():
                scaler.scale(model(inputs).square().mean()).backward()
        norm = -1.0
        if kind in ("clip", "scaler"):
            joined.average()
            scaler.unscale_(optimizer)
            norm = float(nn.utils.clip_grad_norm_(model.parameters(), 0.1))
        scaler.step(optimizer)
        scaler.update()
        shards = [local(each.detach()) for each in model.parameters()]
        line = {"group": place.group, "round": place.round, "rank": place.rank, "step": step}
        if joined.has_state:
            line |= {"digest": digest_of(shards), "norm": norm}
        log.write(json.dumps(line) + "\n")
        log.flush()
