"""A small GPT, sharded by FSDP2, with checkpoints in memory and in storage.

With GPUs, each process takes one of them and NCCL connects them; without, it runs on the CPU with Gloo, so
that you can try it anywhere. The text is made here: lines of sums, such as `17+25=42`, of which the model
learns the answers. Every step draws its batch from its own number, so restarts do not change a run.
"""

import os
import random
import sys
import time
from datetime import timedelta

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import Tensor, nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard

import dlr
from dlr.checkpoint import Checkpointer

STEPS = int(os.environ.get("STEPS", "2000"))
CHECKPOINTS = os.environ.get("CHECKPOINTS", "/data/fsdp2")
PAUSE_SECONDS = float(os.environ.get("PAUSE_SECONDS", "0"))  # leaves time to kill something
WIDTH, LAYERS, HEADS = (int(n) for n in os.environ.get("MODEL", "128,4,4").split(","))
GLOBAL_BATCH, LENGTH = 96, 12
LETTERS = "0123456789+= "


class Block(nn.Module):
    """A layer of the transformer."""

    def __init__(self) -> None:
        super().__init__()
        self.norms = nn.ModuleList([nn.LayerNorm(WIDTH), nn.LayerNorm(WIDTH)])
        self.qkv, self.out = nn.Linear(WIDTH, 3 * WIDTH), nn.Linear(WIDTH, WIDTH)
        self.mlp = nn.Sequential(nn.Linear(WIDTH, 4 * WIDTH), nn.GELU(), nn.Linear(4 * WIDTH, WIDTH))

    def forward(self, x: Tensor) -> Tensor:
        split = self.qkv(self.norms[0](x)).unflatten(-1, (3, HEADS, WIDTH // HEADS)).permute(2, 0, 3, 1, 4)
        mixed = F.scaled_dot_product_attention(*split, is_causal=True).transpose(1, 2).flatten(2)
        x = x + self.out(mixed)
        return x + self.mlp(self.norms[1](x))


class GPT(nn.Module):
    """Next letter of a line."""

    def __init__(self) -> None:
        super().__init__()
        self.letters = nn.Embedding(len(LETTERS), WIDTH)
        self.places = nn.Embedding(LENGTH, WIDTH)
        self.blocks = nn.ModuleList(Block() for _ in range(LAYERS))
        self.head = nn.Linear(WIDTH, len(LETTERS))

    def forward(self, text: Tensor) -> Tensor:
        x = self.letters(text) + self.places(torch.arange(text.shape[1], device=text.device))
        for block in self.blocks:
            x = block(x)
        return self.head(x)


def batch(step: int, rank: int, world: int, device: torch.device) -> Tensor:
    """This rank's lines of a step."""
    draw = random.Random(step)
    sums = [(draw.randrange(100), draw.randrange(100)) for _ in range(GLOBAL_BATCH)][rank::world]
    lines = [f"{a}+{b}={a + b}".ljust(LENGTH + 1) for a, b in sums]
    return torch.tensor([[LETTERS.index(letter) for letter in line] for line in lines], device=device)


def main() -> None:
    local_rank = int(os.environ["LOCAL_RANK"])
    device = torch.device("cuda", local_rank) if torch.cuda.is_available() else torch.device("cpu")
    if device.type == "cuda":
        torch.cuda.set_device(device)
    dist.init_process_group("nccl" if device.type == "cuda" else "gloo", timeout=timedelta(minutes=5))
    rank, world = dist.get_rank(), dist.get_world_size()

    torch.manual_seed(0)
    model = GPT().to(device)
    mesh = init_device_mesh(device.type, (world,))
    for block in model.blocks:
        fully_shard(block, mesh=mesh)
    fully_shard(model, mesh=mesh)  # before there is an optimizer
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)

    ckpt = Checkpointer(CHECKPOINTS, {"model": model, "optimizer": optimizer}, persist_every=200)
    start = ckpt.load() or 0
    print(f"rank {rank} of {world} on {device} continues after step {start}", flush=True)
    for step in range(start + 1, STEPS + 1):
        text = batch(step, rank, world, device)
        loss = F.cross_entropy(model(text[:, :-1]).flatten(0, 1), text[:, 1:].flatten())
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        dlr.report(step, loss=loss.detach(), samples=GLOBAL_BATCH)
        if rank == 0 and step % 100 == 0:
            print(f"step {step} loss {loss.item():.4f}", flush=True)
        time.sleep(PAUSE_SECONDS)
        if ckpt.step(step):
            sys.exit()  # saved before a planned change; the job continues in the next world
    ckpt.close()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
