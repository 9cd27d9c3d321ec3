"""Training for benchmarks/checkpoint_recovery.py: much state, little to compute, a save each step.

With `SAVED_BY=dlrover` it saves with DLRover's flash checkpoint, in a venv without dlr, otherwise with
ours. It writes the same files as benchmarks/tiny_ddp.py, and `<world> <resumed step> <seconds of load>
<CPU seconds>` to `$EVENTS_DIR/load-<rank>`. Its parameters are untouched memory until `load` fills them,
as in a model that is built without initialisation. The first number of each is the step, which reveals a
torn or older state.
"""

import time

BEGAN = time.monotonic()

import os  # noqa: E402 (the time of imports is measured)
from pathlib import Path  # noqa: E402
from typing import Any  # noqa: E402

import torch  # noqa: E402
import torch.distributed as dist  # noqa: E402
from torch import nn  # noqa: E402
from torch.nn.parallel import DistributedDataParallel  # noqa: E402

BY_DLROVER = os.environ.get("SAVED_BY") == "dlrover"
if BY_DLROVER:
    from dlrover.trainer.torch.flash_checkpoint.ddp import DdpCheckpointer, StorageType
else:
    from dlr.checkpoint import Checkpointer

IMPORTED = time.monotonic()
TENSORS = 50
STEP_SECONDS = float(os.environ.get("STEP_SECONDS", "0.02"))


State = dict[str, Any]


class Ours:
    """Save each step, only to memory."""

    def __init__(self, folder: Path, state: State) -> None:
        checkpointer = Checkpointer(folder, state, every=1, persist_every=None)
        self.load, self.wait, self.save = checkpointer.load, checkpointer.wait, checkpointer.step


class Dlrovers:
    """The same with DLRover."""

    def __init__(self, folder: Path, state: State) -> None:
        self._checkpointer = DdpCheckpointer(str(folder))
        self._state = state

    def load(self) -> int | None:
        saved = self._checkpointer.load_checkpoint()
        if not saved:
            return None
        for name, part in self._state.items():
            part.load_state_dict(saved[name])
        step: int = saved["step"]
        return step

    def wait(self) -> None:
        """Do nothing: a save has ended when `save` returns."""

    def save(self, step: int) -> None:
        states = {name: part.state_dict() for name, part in self._state.items()}
        self._checkpointer.save_checkpoint(step, {**states, "step": step}, storage_type=StorageType.MEMORY)


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
    state = {"large": large, "small": small, "optimizer": optimizer}
    saver = (Dlrovers if BY_DLROVER else Ours)(events / "storage", state)
    began, cpu_before = time.monotonic(), time.process_time()
    resumed = saver.load() or 0
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
        loss = small(torch.randn(16, 32)).square().mean()
        saver.wait()  # this early, so that no kill costs more than a step (docs/checkpoints.md)
        loss.backward()
        with torch.no_grad():
            for tensor in large:
                tensor[0] = step
        optimizer.step()
        note(events / f"rank-{rank}", world.item(), pid, step, time.monotonic())
        saver.save(step)
        time.sleep(STEP_SECONDS)


def note(path: Path, *words: object) -> None:
    with path.open("a") as file:
        file.write(" ".join(map(str, words)) + "\n")


if __name__ == "__main__":
    main()
