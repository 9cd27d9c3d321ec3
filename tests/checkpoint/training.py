"""A small training that checkpoints, on as many ranks as tests start.

    OUT PATH --steps N [--every N] [--persist N] [--model ddp|fsdp|meshes] …

Losses are summed over the global batch, whose samples follow from the step, so that they do not depend on the
number of ranks but for the order of summation. Each rank appends a line of JSON a step to OUT.<rank>.
"""

from __future__ import annotations

import argparse
import json
import os
from pathlib import Path

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module
from torch.nn.parallel import DistributedDataParallel

from dlr.checkpoint import Checkpointer

GLOBAL_BATCH = 12


def build(kind: str, width: int, device: str = "cpu") -> tuple[nn.Module, torch.optim.Optimizer]:
    torch.manual_seed(0)
    model: nn.Module = nn.Sequential(nn.Linear(width, 7), nn.Tanh(), nn.Linear(7, width))
    if kind == "bn":
        model = nn.Sequential(nn.Linear(width, 7), nn.BatchNorm1d(7), nn.Linear(7, width))
    model.to(device)
    if kind == "fsdp":
        mesh = init_device_mesh(device, (dist.get_world_size(),))
        for layer in (model[0], model[2]):  # type: ignore[index]
            fully_shard(layer, mesh=mesh)
        fully_shard(model, mesh=mesh)
    if kind.startswith("meshes"):
        model = Side([nn.Sequential(nn.Linear(width, 8), nn.Tanh(), nn.Linear(8, width)) for _ in range(3)])
        if dist.is_initialized():
            shard_in_meshes(model)
        return model, torch.optim.AdamW(model.parameters(), lr=0.01, foreach=False)
    if kind not in ("plain", "fsdp"):
        model = DistributedDataParallel(model)
    return model, torch.optim.AdamW(model.parameters(), lr=0.01)


class Side(nn.ModuleList):
    """The sum of some models."""

    def forward(self, x: Tensor) -> Tensor:
        return torch.stack([full(part(x)) for part in self]).sum(0)


def shard_in_meshes(model: nn.ModuleList) -> None:
    """Tensor parallelism, HSDP, and FSDP over tensor parallelism: one of the parts each."""
    half = dist.get_world_size() // 2
    by_tensor = {"0": ColwiseParallel(), "2": RowwiseParallel()}
    parallelize_module(model[0], init_device_mesh("cpu", (dist.get_world_size(),)), by_tensor)
    fully_shard(model[1], mesh=init_device_mesh("cpu", (2, half), mesh_dim_names=("replicate", "shard")))
    both = init_device_mesh("cpu", (half, 2), mesh_dim_names=("data", "tensor"))
    parallelize_module(model[2], both["tensor"], by_tensor)
    fully_shard(model[2], mesh=both["data"])


def batch(step: int, width: int) -> Tensor:
    return torch.randn(GLOBAL_BATCH, width, generator=torch.Generator().manual_seed(step))


def full(value: Tensor) -> Tensor:
    return value.full_tensor() if hasattr(value, "full_tensor") else value


def main(arguments: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("out")
    parser.add_argument("path")
    parser.add_argument("--steps", type=int, required=True)
    parser.add_argument("--every", default="1")
    parser.add_argument("--persist", type=int, default=None)
    parser.add_argument("--model", default="ddp")
    parser.add_argument("--width", type=int, default=5)
    parser.add_argument("--final")
    parser.add_argument("--die-after", type=int)
    parser.add_argument("--device", default="cpu")
    args = parser.parse_args(arguments)
    torch.set_num_threads(1)
    on_gpu = args.device == "cuda"
    if on_gpu:  # NCCL refuses to have one GPU twice on a host, so each rank says that it is on another
        os.environ |= {"NCCL_HOSTID": os.environ["RANK"], "CUBLAS_WORKSPACE_CONFIG": ":4096:8"}
    if "RANK" in os.environ and args.model != "plain":
        dist.init_process_group("nccl" if on_gpu else "gloo")
    rank, world = int(os.environ.get("RANK", "0")), int(os.environ.get("WORLD_SIZE", "1"))
    model, optimizer = build(args.model, args.width, args.device)
    scheduler = torch.optim.lr_scheduler.StepLR(optimizer, 4, 0.7)
    state = {"model": model, "optimizer": optimizer, "scheduler": scheduler, "note": "fresh"}
    every = args.every if args.every == "auto" else int(args.every)
    checkpointer = Checkpointer(args.path, state, every=every, persist_every=args.persist)
    start = checkpointer.load() or 0
    with Path(f"{args.out}.{rank}").open("a") as out:
        print(json.dumps({"start": start, "note": state["note"]}), file=out, flush=True)
        state["note"] = "trained"
        for step in range(start + 1, args.steps + 1):
            mine = batch(step, args.width).to(args.device)
            if args.model != "meshes":  # whose ranks have to see the same
                mine = mine[rank::world]
            output = model(mine)
            loss = (output - mine).square().sum() / len(mine)
            optimizer.zero_grad()
            loss.backward()
            checkpointer.wait()
            optimizer.step()
            scheduler.step()
            if checkpointer.step(step):
                return
            print(json.dumps({"step": step, "loss": loss.item()}), file=out, flush=True)
            if step == args.die_after:
                os.kill(os.getpid(), 9)
    if args.final:
        weights = {name: full(value) for name, value in model.state_dict().items()}
        if rank == 0:
            torch.save(weights, args.final)
    checkpointer.close()
