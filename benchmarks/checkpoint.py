"""What saving costs a training loop: ours, torch's, DLRover's and LM Resiliency's, in one run.

    python -m benchmarks.checkpoint --gigabytes 0.5 [--device cuda] [--dlrover FOLDER]
        [--lm-resiliency FOLDER] [--document benchmarks/results/checkpoints.md]

All train the same model with the same optimizer, in turn, some steps each with one save among them, and one
of them without any. Three figures come of it:

    blocked   how long the calls of a save keep the training thread: the save itself, and the wait before the
              next optimizer's step
    CPU       how much more CPU time the training thread takes for the rest of the steps, since what goes on
              in the background takes caches and memory bandwidth; a busy machine disturbs this less
    slower    how much longer the steps take, by the clock, than those without a save: all of it

FOLDERs are where the others were installed:
`pip install --no-deps --target FOLDER dlrover pympler deprecated psutil` and
`pip install --no-deps --target FOLDER lm-resiliency`.
"""

from __future__ import annotations

import argparse
import importlib
import json
import logging
import os
import platform
import shutil
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from datetime import date
from pathlib import Path
from statistics import median
from typing import Any

import torch
from torch import Tensor, nn

from agent.slots.format import Mark
from agent.slots.pool import Pool
from agent.slots.process_files import ENV_CHECKPOINT_FILE
from agent.slots.slot import Slot
from dlr.checkpoint import Checkpointer
from dlr.checkpoint.own_slot import own_slot
from dlr.checkpoint.state import restore

LAYERS = 12
BYTES_PER_PARAMETER = 12
"""In float32, with AdamW's two averages."""
STEPS = 4
"""Of one turn. The save is after the first, so that the others may be slower for it."""
BEGIN, END = "<!-- stalls -->", "<!-- end of stalls -->"
PLAIN = "no save"


def nothing(*_: object) -> None:
    pass


PASS_SECONDS = {"cpu": 0.6, "cuda": 0.1}
"""Of a forward and backward pass, a GB of state: about what a training has that is worth a checkpoint."""


class Training:
    """A model whose state has this size, and whose forward and backward passes take `PASS_SECONDS` a GB."""

    def __init__(self, gigabytes: float, device: str) -> None:
        self.device = device
        width = int((gigabytes * 1e9 / BYTES_PER_PARAMETER / LAYERS) ** 0.5)
        layers = [layer for _ in range(LAYERS) for layer in (nn.Linear(width, width), nn.Tanh())]
        self.model = nn.Sequential(*layers).to(device)
        self.optimizer = torch.optim.AdamW(self.model.parameters(), foreach=True)
        samples = 16 if device == "cpu" else 4096
        self._batch = torch.randn(samples, width, device=device)
        self.step(nothing)
        pass_seconds = min(self._timed_pass() for _ in range(12))
        samples = max(samples, int(samples * PASS_SECONDS[device] * gigabytes / pass_seconds))
        self._batch = torch.randn(samples, width, device=device)
        self.pass_seconds = min(self._timed_pass() for _ in range(5))

    def settle(self) -> None:
        """Wait for the GPU."""
        if self.device == "cuda":
            torch.cuda.synchronize()

    def _timed_pass(self) -> float:
        self.settle()
        began = time.perf_counter()
        self._pass()
        self.settle()
        return time.perf_counter() - began

    def _pass(self) -> None:
        self.optimizer.zero_grad()
        self.model(self._batch).square().mean().backward()

    def step(self, wait: Callable[[], object]) -> None:
        """Train a step.

        Args:
            wait: called before parameters change.
        """
        self._pass()
        wait()
        self.optimizer.step()

    def tensors(self) -> list[Tensor]:
        """The live tensors of the model and the optimizer."""
        kept = [value for of_one in self.optimizer.state.values() for value in of_one.values()]
        return [*self.model.state_dict().values(), *kept]

    def state(self) -> dict[str, Any]:
        return {"model": self.model.state_dict(), "optimizer": self.optimizer.state_dict()}


class Stopwatch:
    """What calls take: by the clock, and of the CPU in this thread."""

    def __init__(self) -> None:
        self.seconds = self.cpu = 0.0

    def around(self, call: Callable[..., object]) -> Callable[..., None]:
        def timed(*arguments: object) -> None:
            began, began_cpu = time.perf_counter(), time.thread_time()
            call(*arguments)
            self.seconds += time.perf_counter() - began
            self.cpu += time.thread_time() - began_cpu

        return timed


@dataclass
class Contender:
    """One way to save."""

    save: Callable[[int], object]
    """Saves a step, as far as it keeps the training thread."""
    wait: Callable[[], object] = nothing
    """Called before parameters change."""
    settle: Callable[[], object] = nothing
    """Waits for what goes on in the background, after a turn: not timed."""
    end: Callable[[], object] = nothing
    """Leaves nothing behind."""
    blocked: list[float] = field(default_factory=list)
    """Seconds of each turn."""
    turns: list[float] = field(default_factory=list)
    cpu: list[float] = field(default_factory=list)
    """CPU seconds of the training thread, without those in the calls of a save."""

    def turn(self, training: Training, number: int) -> None:
        """Train some steps with a save after the first."""
        calls = Stopwatch()
        began, began_cpu = time.perf_counter(), time.thread_time()
        for index in range(STEPS):
            training.step(calls.around(self.wait))
            if index == 0:
                calls.around(self.save)(number)
        training.settle()
        self.turns.append(time.perf_counter() - began)
        self.cpu.append(time.thread_time() - began_cpu - calls.cpu)
        self.blocked.append(calls.seconds)
        self.settle()


def ours(training: Training, slots: list[Slot], folder: Path) -> Contender:
    """A `Checkpointer`, with slots as an agent makes them."""
    told = folder / "checkpoint.json"
    told.write_text(json.dumps({"round": 1, "slots": [slot.path for slot in slots], "resume": None}))
    os.environ[ENV_CHECKPOINT_FILE] = str(told)
    state = {"model": training.model, "optimizer": training.optimizer}
    checkpointer = Checkpointer(folder / "dlr", state, every=2, persist_every=None)
    training.optimizer.state.clear()  # as in any script that begins, where `load` finds nothing either
    checkpointer.load()
    training.step(checkpointer.wait)
    checkpointer.step(1)

    def settle() -> None:
        while newest(slots).commit_word != 2:
            time.sleep(0.001)

    return Contender(lambda number: checkpointer.step(2 * number), checkpointer.wait, settle)


def newest(slots: list[Slot]) -> Slot:
    return max(slots, key=lambda slot: slot.mark or Mark(0, 0, 0, 0))


def touched_slots(nbytes: int, count: int) -> list[Slot]:
    """Make slots as an agent does, before training: no save is the first to touch the memory."""
    pool = Pool(nbytes * count, count)
    pool.touch().join()
    return pool.slots


def torch_save(training: Training, folder: Path) -> Contender:
    return Contender(lambda number: torch.save(training.state(), folder / "state.pt"))


def async_save(training: Training, folder: Path) -> Contender:
    dcp = importlib.import_module("torch.distributed.checkpoint")
    under_way: list[Any] = []

    def save(number: int) -> None:
        under_way.append(dcp.async_save(training.state(), checkpoint_id=folder / f"dcp-{number}"))

    def settle() -> None:
        under_way.pop().result()
        for path in folder.glob("dcp-*"):
            shutil.rmtree(path)

    return Contender(save, settle=settle)


def dlrover(training: Training, installed: str) -> Contender:
    """The copy into shared memory of its flash checkpoint, without the agent and the lock around it."""
    sys.path.append(installed)
    shm = importlib.import_module("dlrover.python.elastic_agent.torch.ckpt_saver")
    handler = shm.SharedMemoryHandler(0, host=True)
    config = shm.CheckpointConfig(step=0)

    def save(number: int) -> None:
        config.step = number
        handler.save_state_dict({**training.state(), shm.DLROVER_CKPT_CONFIG_KEY: config})

    return Contender(save, end=handler.unlink)


def lm_resiliency(training: Training, installed: str, folder: Path) -> Contender:
    """GEMINI's capture by its fast call; alone, so that it has no peer to send anything to."""
    sys.path.append(installed)
    checkpointing = importlib.import_module("lm_resiliency.checkpointing")
    config = checkpointing.InMemoryCkptConfig(
        interval=1, disk_flush_interval=0, disk_folder=str(folder / "lm"), run_id="benchmark"
    )
    manager = checkpointing.InMemoryCheckpointManager(config)
    return Contender(
        lambda number: manager.save_tensors(training.tensors(), number), manager.maybe_wait, end=manager.close
    )


@contextmanager
def scratch() -> Iterator[Path]:
    folder = Path(tempfile.mkdtemp(dir="/dev/shm"))
    try:
        yield folder
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def restored(training: Training, slots: list[Slot]) -> tuple[float, float]:
    """Seconds to verify and to bring back our newest, beside one copy of the state."""
    slot = newest(slots)
    assert slot.mark is not None
    began = time.perf_counter()
    state = {"model": training.model, "optimizer": training.optimizer}
    with own_slot(slot.path, slot.mark) as source:
        restore(state, source.values, source.rng, source.parts, source.fill)
    training.settle()
    load_seconds = time.perf_counter() - began
    tensors = training.tensors()
    copies = [torch.zeros_like(tensor) for tensor in tensors]
    began = time.perf_counter()
    for copy, tensor in zip(copies, tensors, strict=True):
        copy.copy_(tensor)
    training.settle()
    return load_seconds, time.perf_counter() - began


def measure(args: argparse.Namespace) -> dict[str, Any]:
    torch.set_num_threads(1)  # as torchrun and dlr have it where a node has several processes
    gigabytes: float = args.gigabytes
    training = Training(gigabytes, args.device)
    slots = touched_slots(int(gigabytes * 1e9) + (1 << 22), 3)
    with scratch() as folder:
        contenders = {
            PLAIN: Contender(nothing),
            "dlr, into the agent's memory": ours(training, slots, folder),
            "`dcp.async_save`, default, to tmpfs": async_save(training, folder),
            "`torch.save`, to tmpfs": torch_save(training, folder),
        }
        if args.dlrover:
            contenders["DLRover, into shared memory"] = dlrover(training, args.dlrover)
        if args.lm_resiliency:
            contenders["LM Resiliency, into its own memory"] = lm_resiliency(
                training, args.lm_resiliency, folder
            )
        for number in range(1, args.turns + 1):
            for contender in contenders.values():
                contender.turn(training, number)
        load_seconds, copy_seconds = restored(training, slots)
        for contender in contenders.values():
            contender.end()
    return {
        "blocked": {name: [s / gigabytes for s in found.blocked] for name, found in contenders.items()},
        "turns": {name: [s / gigabytes for s in found.turns] for name, found in contenders.items()},
        "cpu": {name: [s / gigabytes for s in found.cpu] for name, found in contenders.items()},
        "pass": training.pass_seconds / gigabytes,
        "load": load_seconds / gigabytes,
        "copy": copy_seconds / gigabytes,
    }


def table(found: dict[str, Any], gigabytes: float) -> str:
    plain = found["turns"][PLAIN][1:]
    rows = [
        f"{date.today()}, {platform.machine()}, {os.cpu_count()} cores, torch {torch.__version__}, "
        f"{gigabytes:g} GB of model and AdamW, forward and backward {found['pass']:.2f} s a GB, "
        f"a load of {os.getloadavg()[0]:.0f}; seconds a GB and save, of {len(plain)} saves after the first:",
        "",
        "| | blocked, first save | later, median | least | more CPU, median | slower, median |",
        "|---|--:|--:|--:|--:|--:|",
    ]
    for name, (first, *later) in found["blocked"].items():
        turns = found["turns"][name][1:]
        if name != PLAIN:
            rows.append(
                f"| {name} | {first:.3f} | {median(later):.3f} | {min(later):.3f} "
                f"| {median(found['cpu'][name][1:]) - median(found['cpu'][PLAIN][1:]):.3f} "
                f"| {median(turns) - median(plain):.3f} |"
            )
    spread = sorted(plain)[len(plain) * 3 // 4] - sorted(plain)[len(plain) // 4]
    rows += [
        "",
        f"The {STEPS} steps of a turn without a save take {median(plain):.2f} s a GB, and half of all such "
        f"turns are within {spread:.2f}. Load, verified: {found['load']:.3f}; one copy of the state: "
        f"{found['copy']:.3f}.",
    ]
    return "\n".join(rows)


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--gigabytes", type=float, default=0.5)
    parser.add_argument("--device", choices=("cpu", "cuda"), default="cpu")
    parser.add_argument(
        "--turns", type=int, default=9, help="at least 2: the first one has a column of its own"
    )
    parser.add_argument("--dlrover", metavar="FOLDER")
    parser.add_argument("--lm-resiliency", metavar="FOLDER")
    parser.add_argument("--document", type=Path)
    args = parser.parse_args()
    if args.turns < 2:
        parser.error(
            f"--turns {args.turns}: the medians are those of the turns after the first; use 2 or more"
        )
    logging.getLogger("dlr.checkpoint").setLevel(logging.WARNING)
    found = measure(args)
    print(json.dumps(found))
    text = table(found, args.gigabytes)
    print(text)
    if args.document is not None:
        document = args.document.read_text()
        before, _, rest = document.partition(BEGIN)
        args.document.write_text(f"{before}{BEGIN}\n{text}\n{END}{rest.partition(END)[2]}")


if __name__ == "__main__":
    with suppress(KeyboardInterrupt):
        main()
