"""The training that benchmarks/endurance.py kills: tiny, with a checkpoint every few steps.

Every rank appends `<world> <step> <CLOCK_MONOTONIC>` to `$EVENTS_DIR/steps-<rank>`; rank 0 appends
`<world> <step>` to `$EVENTS_DIR/resumed` and, once a checkpoint is whole on disk, to `$EVENTS_DIR/saved`.
`world` is drawn by rank 0 and broadcast.
"""

import os
import time
from pathlib import Path

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

import dlr

STEP_SECONDS = 0.02
STEPS_PER_CHECKPOINT = 5


def save(path: Path, step: int) -> None:
    """Whole, or not at all."""
    draft = path.with_suffix(".draft")
    with draft.open("w") as file:
        file.write(str(step))
        file.flush()
        os.fsync(file.fileno())
    draft.rename(path)


def main() -> None:
    events = Path(os.environ["EVENTS_DIR"])
    checkpoint = events / "checkpoint"
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    start = torch.tensor([time.monotonic_ns(), int(checkpoint.read_text()) if checkpoint.exists() else 0])
    dist.broadcast(start, src=0)
    world, step = start.tolist()
    model = DistributedDataParallel(nn.Linear(32, 32))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    with (
        (events / f"steps-{rank}").open("a", buffering=1) as steps,
        (events / "resumed").open("a", buffering=1) as resumed,
        (events / "saved").open("a", buffering=1) as saved,
    ):
        if rank == 0:
            resumed.write(f"{world} {step}\n")
        while True:
            step += 1
            optimizer.zero_grad()
            model(torch.randn(16, 32)).square().mean().backward()
            optimizer.step()
            steps.write(f"{world} {step} {time.monotonic()}\n")
            dlr.report(step)
            if step % STEPS_PER_CHECKPOINT == 0:
                if rank == 0:
                    save(checkpoint, step)
                    saved.write(f"{world} {step}\n")
                dlr.checkpoint_saved(step)
            time.sleep(STEP_SECONDS)


if __name__ == "__main__":
    main()
