"""What benchmarks/heavy_ddp.py is, with DLRover's flash checkpoint in place of ours: memory alone, each step.

Its launcher gives each agent's processes the shared memory that was there before. It runs in DLRover's own
venv, so nothing of dlr is imported.
"""

import time

BEGAN = time.monotonic()

import os  # noqa: E402 (what importing costs is measured)
from pathlib import Path  # noqa: E402

import torch  # noqa: E402
import torch.distributed as dist  # noqa: E402
from dlrover.trainer.torch.flash_checkpoint.ddp import DdpCheckpointer, StorageType  # noqa: E402
from torch import nn  # noqa: E402
from torch.nn.parallel import DistributedDataParallel  # noqa: E402

IMPORTED = time.monotonic()
TENSORS = 50
STEP_SECONDS = 0.02


def main() -> None:
    dist.init_process_group("gloo")
    initialised = time.monotonic()
    world = torch.tensor([time.monotonic_ns()])
    dist.broadcast(world, src=0)
    events, rank, pid = Path(os.environ["EVENTS_DIR"]), dist.get_rank(), os.getpid()
    note(events / f"start-{rank}", world.item(), pid, BEGAN, IMPORTED, initialised)
    count = int(float(os.environ["GIGABYTES"]) * 1e9 / 4 / TENSORS)
    large = nn.ParameterList(nn.Parameter(torch.empty(count)) for _ in range(TENSORS))
    small = DistributedDataParallel(nn.Linear(32, 32))
    optimizer = torch.optim.SGD([*small.parameters(), *large.parameters()], lr=0.01)
    checkpointer = DdpCheckpointer(str(events / "storage"))
    began, cpu_before = time.monotonic(), time.process_time()
    resumed = 0
    if saved := checkpointer.load_checkpoint():
        resumed = saved["step"]
        large.load_state_dict(saved["large"])
        small.load_state_dict(saved["small"])
        optimizer.load_state_dict(saved["optimizer"])
    seconds, cpu_seconds = time.monotonic() - began, time.process_time() - cpu_before
    note(events / f"load-{rank}", world.item(), resumed, seconds, cpu_seconds)
    with torch.no_grad():
        if resumed == 0:
            for tensor in large:
                tensor.zero_()
        assert all(tensor[0] == resumed for tensor in large), "the state is not that of the step"
    step = resumed
    while True:
        step += 1
        optimizer.zero_grad()
        small(torch.randn(16, 32)).square().mean().backward()
        with torch.no_grad():
            for tensor in large:
                tensor[0] = step
        optimizer.step()
        note(events / f"rank-{rank}", world.item(), pid, step, time.monotonic())
        states = {"large": large.state_dict(), "small": small.state_dict(), "step": step}
        states["optimizer"] = optimizer.state_dict()
        checkpointer.save_checkpoint(step, states, storage_type=StorageType.MEMORY)
        time.sleep(STEP_SECONDS)


def note(path: Path, *words: object) -> None:
    with path.open("a") as file:
        file.write(" ".join(map(str, words)) + "\n")


if __name__ == "__main__":
    main()
