"""A small regression whose checkpoints are in the memory of its Pods, and in storage when all Pods go.

`Checkpointer` is all that it takes: a killed process costs the steps since the last save to memory (with
`EVERY=1` one step at most), and a planned change (kubectl scale, a suspension, a deleted Pod) costs none.
Each step learns from the same 12 samples with any number of workers that divides 12, so the losses do not
depend on the world. `SHARDED=1` trains with FSDP2, each rank with its part of the model, in place of DDP.

Rank 0 appends a line of JSON for each step to `$OUT/steps.jsonl`. Runs unchanged under `dlr run`, under stock
`torchrun`, and as one plain process.
"""

import json
import os
import time
from pathlib import Path

import torch
import torch.distributed as dist
import torch.distributed.nn.functional  # before there is a group: it would keep that to the end
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel

from dlr.checkpoint import Checkpointer

STEPS = int(os.environ.get("STEPS", "600"))
STEP_SECONDS = float(os.environ.get("STEP_SECONDS", "0.1"))  # leaves time to kill something
EVERY = os.environ.get("EVERY", "auto")  # steps between two saves to memory
SHARDED = os.environ.get("SHARDED") == "1"
GLOBAL_BATCH, FEATURES = 12, 8


def batch(step: int, rank: int, world: int) -> tuple[Tensor, Tensor]:
    """This rank's samples of a step, and what is to be learned."""
    samples = torch.randn(GLOBAL_BATCH, FEATURES, generator=torch.Generator().manual_seed(step))
    mine = samples[rank::world]
    return mine, mine.sum(1).sin()


def main() -> None:
    if "RANK" in os.environ:
        dist.init_process_group("gloo")
    rank, world = (dist.get_rank(), dist.get_world_size()) if dist.is_initialized() else (0, 1)
    out = Path(os.environ["OUT"])

    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(FEATURES, 16), nn.Tanh(), nn.Linear(16, 1))
    if SHARDED and dist.is_initialized():
        from torch.distributed.device_mesh import init_device_mesh  # takes most of a second to import
        from torch.distributed.fsdp import fully_shard

        fully_shard(model, mesh=init_device_mesh("cpu", (world,)))  # before there is an optimizer
    optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
    ckpt = Checkpointer(
        out / "checkpoints",
        {"model": model, "optimizer": optimizer},
        every="auto" if EVERY == "auto" else int(EVERY),
        persist_every=200,
    )
    start = ckpt.load() or 0
    replica = DistributedDataParallel(model) if dist.is_initialized() and not SHARDED else model
    print(f"rank {rank} of {world} goes on after step {start}", flush=True)

    for step in range(start + 1, STEPS + 1):
        samples, targets = batch(step, rank, world)
        loss = (replica(samples).squeeze(1) - targets).square().mean()
        optimizer.zero_grad()
        loss.backward()
        ckpt.wait()
        optimizer.step()
        time.sleep(STEP_SECONDS)
        total = loss.detach().clone()
        if dist.is_initialized():
            dist.all_reduce(total)
            total /= world
        if rank == 0:
            with (out / "steps.jsonl").open("a") as log:
                log.write(json.dumps({"step": step, "world": world, "loss": total.item()}) + "\n")
        if ckpt.step(step):
            return  # the job goes on elsewhere, behind this step

    ckpt.close()
    if dist.is_initialized():
        del replica
        dist.destroy_process_group()


if __name__ == "__main__":
    main()
