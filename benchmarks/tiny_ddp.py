"""Training for benchmarks/recovery.py: the smallest DDP loop that notes the end of each step.

Every rank appends `<world> <pid> <step> <CLOCK_MONOTONIC>` to `$EVENTS_DIR/rank-<rank>`, and once per
start `<world> <pid> <began> <imported> <initialised>` to `$EVENTS_DIR/start-<rank>`. Rank 0 draws and
broadcasts `world`, which identifies the process group of a step. It reports steps to dlr as if it resumed
from a checkpoint, because training without progress is delayed before a retry.
"""

import time

BEGAN = time.monotonic()

import os  # noqa: E402 (the time of imports is measured)
from pathlib import Path  # noqa: E402
from typing import SupportsFloat  # noqa: E402

import torch  # noqa: E402
import torch.distributed as dist  # noqa: E402
from torch import nn  # noqa: E402
from torch.nn.parallel import DistributedDataParallel  # noqa: E402

try:
    from dlr import report
except ImportError:  # the peers need not have it

    def report(
        step: int, loss: SupportsFloat | None = None, samples: int | None = None, **numbers: SupportsFloat
    ) -> None:
        """Do nothing."""


IMPORTED = time.monotonic()

STEP_SECONDS = 0.02


def main() -> None:
    dist.init_process_group("gloo")
    initialised = time.monotonic()
    world = torch.tensor([time.monotonic_ns()])
    dist.broadcast(world, src=0)
    events, rank, pid = Path(os.environ["EVENTS_DIR"]), dist.get_rank(), os.getpid()
    with (events / f"start-{rank}").open("a") as file:
        file.write(f"{world.item()} {pid} {BEGAN} {IMPORTED} {initialised}\n")
    model = DistributedDataParallel(nn.Linear(32, 32))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    steps = events / f"rank-{rank}"
    done = steps.read_bytes().count(b"\n") if steps.exists() else 0
    with steps.open("a", buffering=1) as file:
        step = 0
        while True:
            step += 1
            optimizer.zero_grad()
            model(torch.randn(16, 32)).square().mean().backward()
            optimizer.step()
            file.write(f"{world.item()} {pid} {step} {time.monotonic()}\n")
            report(done + step)
            time.sleep(STEP_SECONDS)


if __name__ == "__main__":
    main()
