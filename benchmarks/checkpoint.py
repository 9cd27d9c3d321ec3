"""Cost of saves for a training loop: ours, torch's, DLRover's and LM Resiliency's, in one run.

    python -m benchmarks.checkpoint --gigabytes 0.5 [--device cuda] [--dlrover FOLDER]
        [--lm-resiliency FOLDER] [--document benchmarks/results/checkpoints.md]

All train the same model with the same optimizer, in turn, for some steps with one save among them; one
contender trains without saves. There are three figures:

    blocked   time that the calls of a save block the training thread: the save itself, and the wait before
              the next optimizer step
    CPU       additional CPU time of the training thread for the rest of the steps, because background work
              takes caches and memory bandwidth; a busy machine disturbs this less
    slower    additional wall time of the steps compared with those without a save: the total cost

The FOLDERs have the other packages: `pip install --no-deps --target FOLDER dlrover pympler deprecated
psutil` and `pip install --no-deps --target FOLDER lm-resiliency`.
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
from contextlib import contextmanager
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
"""Bytes of state per parameter, in float32 with AdamW's two averages."""
STEPS = 4
"""Steps of one turn. The save is after the first, so that it may slow down the others."""
BEGIN, END = "<!-- stalls -->", "<!-- end of stalls -->"
PLAIN = "no save"


def nothing(*_: object) -> None:
    pass


PASS_SECONDS = {"cpu": 0.6, "cuda": 0.1}
"""Seconds of a forward and backward pass per GB of state, about as in training that is worth a checkpoint."""


class Training:
    """Model with a state of this size, whose forward and backward passes take `PASS_SECONDS` per GB."""

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
        """Return the live tensors of the model and the optimizer."""
        kept = [value for of_one in self.optimizer.state.values() for value in of_one.values()]
        return [*self.model.state_dict().values(), *kept]

    def state(self) -> dict[str, Any]:
        return {"model": self.model.state_dict(), "optimizer": self.optimizer.state_dict()}


class Stopwatch:
    """Stopwatch of calls: wall time, and CPU time of this thread."""

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
    """Way to save."""

    save: Callable[[int], object]
    """Saves a step; the part that blocks the training thread."""
    wait: Callable[[], object] = nothing
    """Called before parameters change."""
    settle: Callable[[], object] = nothing
    """Waits for background work after a turn; not timed."""
    end: Callable[[], object] = nothing
    """Removes all traces."""
    blocked: list[float] = field(default_factory=list)
    """Seconds of blocking calls in each turn."""
    turns: list[float] = field(default_factory=list)
    cpu: list[float] = field(default_factory=list)
    """CPU seconds of the training thread, without the calls of a save."""

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
    """Return a `Checkpointer`, with slots as an agent creates them."""
    settings = folder / "checkpoint.json"
    settings.write_text(json.dumps({"round": 1, "slots": [slot.path for slot in slots], "resume": None}))
    os.environ[ENV_CHECKPOINT_FILE] = str(settings)
    state = {"model": training.model, "optimizer": training.optimizer}
    checkpointer = Checkpointer(folder / "dlr", state, every=2, persist_every=None)
    training.optimizer.state.clear()  # as at the start of any script, where `load` finds nothing either
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
    """Create slots as an agent does, before training, so that no save is the first to touch the memory."""
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
    """Return DLRover's flash checkpoint: the copy into shared memory, without its agent and lock."""
    sys.path.append(installed)
    shm = importlib.import_module("dlrover.python.elastic_agent.torch.ckpt_saver")
    handler = shm.SharedMemoryHandler(0, host=True)
    config = shm.CheckpointConfig(step=0)

    def save(number: int) -> None:
        config.step = number
        handler.save_state_dict({**training.state(), shm.DLROVER_CKPT_CONFIG_KEY: config})

    return Contender(save, end=handler.unlink)


def lm_resiliency(training: Training, installed: str, folder: Path) -> Contender:
    """Return GEMINI's capture with its fast call; alone, so that it has no peer to send to."""
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
    """Return the seconds to verify and restore our newest save, and of one copy of the state."""
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
    torch.set_num_threads(1)  # as torchrun and dlr set it for several processes on a node
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
        figure: {name: [s / gigabytes for s in getattr(each, figure)] for name, each in contenders.items()}
        for figure in ("blocked", "turns", "cpu")
    } | {
        "pass": training.pass_seconds / gigabytes,
        "load": load_seconds / gigabytes,
        "copy": copy_seconds / gigabytes,
    }


def insert(document: Path, begin: str, text: str, end: str) -> None:
    """Replace the text between two marks of a document."""
    before, _, rest = document.read_text().partition(begin)
    document.write_text(f"{before}{begin}\n{text}\n{end}{rest.partition(end)[2]}")


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
    parser.add_argument("--turns", type=int, default=9, help="at least 2: the first has its own column")
    parser.add_argument("--dlrover", metavar="FOLDER")
    parser.add_argument("--lm-resiliency", metavar="FOLDER")
    parser.add_argument("--document", type=Path)
    args = parser.parse_args()
    if args.turns < 2:
        parser.error(f"--turns {args.turns}: medians are of the turns after the first; use 2 or more")
    logging.getLogger("dlr.checkpoint").setLevel(logging.WARNING)
    found = measure(args)
    print(json.dumps(found))
    text = table(found, args.gigabytes)
    print(text)
    if args.document is not None:
        insert(args.document, BEGIN, text, END)


if __name__ == "__main__":
    main()
