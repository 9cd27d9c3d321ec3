"""The training that benchmarks/recovery.py kills: the smallest DDP loop that notes when each step ended.

Every rank appends `<world> <pid> <step> <CLOCK_MONOTONIC>` to `$EVENTS_DIR/rank-<rank>`. `world` is drawn
by rank 0 and broadcast, so that steps of one process group can be told from those of the next.
"""

import os
import time
from pathlib import Path

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

STEP_SECONDS = 0.02


def main() -> None:
    dist.init_process_group("gloo")
    world = torch.tensor([time.monotonic_ns()])
    dist.broadcast(world, src=0)
    model = DistributedDataParallel(nn.Linear(32, 32))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    events = Path(os.environ["EVENTS_DIR"]) / f"rank-{dist.get_rank()}"
    with events.open("a", buffering=1) as file:
        step = 0
        while True:
            step += 1
            optimizer.zero_grad()
            model(torch.randn(16, 32)).square().mean().backward()
            optimizer.step()
            file.write(f"{world.item()} {os.getpid()} {step} {time.monotonic()}\n")
            time.sleep(STEP_SECONDS)


if __name__ == "__main__":
    main()
