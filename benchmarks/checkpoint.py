"""How long a save stops training: ours, torch's, and DLRover's flash checkpoint, in one run on the CPU.

    python -m benchmarks.checkpoint --gigabytes 1 [--dlrover FOLDER] [--document docs/checkpoints.md]

Each saves the same tensors again and again, in turn, and is timed until it gives the training thread back.
What goes on in the background is waited for before the next turn. FOLDER is where DLRover was installed
(`pip install --no-deps --target FOLDER dlrover pympler deprecated psutil`).
"""

from __future__ import annotations

import argparse
import importlib
import json
import mmap
import os
import platform
import shutil
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from datetime import date
from pathlib import Path
from statistics import median
from typing import Any

import torch
from torch import Tensor

from agent.memory.slot import Mark, Slot
from dlr.checkpoint.memory import Writer, verified
from dlr.checkpoint.state import capture, restore

TENSORS = 50
BEGIN, END = "<!-- stalls -->", "<!-- end of stalls -->"

Save = Callable[[int], float]
"""Saves a step; answers after how many seconds training could go on."""


def ours(state: dict[str, Tensor], slots: list[Slot]) -> Save:
    writer = Writer(slots)

    def save(step: int) -> float:
        began = time.perf_counter()
        writer.save(Mark(1, step, 0, 1), capture({"state": state}))
        stalled = time.perf_counter() - began
        for slot in slots:  # its sums, which a thread adds
            while slot.mark is not None and slot.mark.step == step and slot.commit_word != 2:
                time.sleep(0.001)
        return stalled

    return save


def touched_slots(nbytes: int, count: int) -> list[Slot]:
    """As an agent makes them: before training, so that no save is the first to touch the memory."""
    slots = []
    for _ in range(count):
        descriptor = os.memfd_create("benchmark")
        os.ftruncate(descriptor, nbytes)
        memory = mmap.mmap(descriptor, 0)
        slots.append(Slot(memory, descriptor))
        slots[-1].whole().zero_()
    return slots


def torch_save(state: dict[str, Tensor], folder: Path) -> Save:
    def save(step: int) -> float:
        began = time.perf_counter()
        torch.save(state, folder / "state.pt")
        return time.perf_counter() - began

    return save


def async_save(state: dict[str, Tensor], folder: Path) -> Save:
    dcp = importlib.import_module("torch.distributed.checkpoint")

    def save(step: int) -> float:
        began = time.perf_counter()
        done = dcp.async_save(state, checkpoint_id=folder / f"dcp-{step}")
        stalled = time.perf_counter() - began
        done.result()
        shutil.rmtree(folder / f"dcp-{step}")
        return stalled

    return save


def dlrover(state: dict[str, Tensor]) -> Save:
    """The copy into shared memory of its flash checkpoint, without the agent and the lock around it."""
    shm = importlib.import_module("dlrover.python.elastic_agent.torch.ckpt_saver")
    handler = shm.SharedMemoryHandler(0, host=True)
    config = shm.CheckpointConfig(step=0)

    def save(step: int) -> float:
        config.step = step
        began = time.perf_counter()
        handler.save_state_dict({"state": state, shm.DLROVER_CKPT_CONFIG_KEY: config})
        return time.perf_counter() - began

    return save


@contextmanager
def scratch() -> Iterator[Path]:
    folder = Path(tempfile.mkdtemp(dir="/dev/shm"))
    try:
        yield folder
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def restored(state: dict[str, Tensor], slots: list[Slot]) -> tuple[float, float]:
    """Seconds to verify and to bring back our newest, beside one copy of the state."""
    slot = max((slot for slot in slots if slot.mark), key=lambda slot: slot.mark or Mark(0, 0, 0, 0))
    into = {"state": {name: torch.empty_like(tensor) for name, tensor in state.items()}}
    for tensor in into["state"].values():
        tensor.zero_()
    began = time.perf_counter()
    assert slot.mark is not None
    source = verified(slot, slot.mark)
    restore(into, source.values, source.rng, source.parts, source.fill)
    load_seconds = time.perf_counter() - began
    assert all(torch.equal(into["state"][name], tensor) for name, tensor in state.items())
    began = time.perf_counter()
    for name, tensor in state.items():
        into["state"][name].copy_(tensor)
    return load_seconds, time.perf_counter() - began


def measure(gigabytes: float, saves: int, with_dlrover: str | None) -> dict[str, Any]:
    torch.set_num_threads(1)  # as torchrun and dlr have it where a node has several processes
    count = int(gigabytes * 1e9 / 4 / TENSORS)
    state = {f"layer.{number}.weight": torch.randn(count) for number in range(TENSORS)}
    slots = touched_slots(int(gigabytes * 1e9) + (1 << 20), 2)
    with scratch() as folder:
        contenders: dict[str, Save] = {
            "dlr, into the agent's memory": ours(state, slots),
            "`dcp.async_save`, default": async_save(state, folder),
            "`torch.save`, to tmpfs": torch_save(state, folder),
        }
        if with_dlrover:
            sys.path.append(with_dlrover)
            contenders["DLRover, into shared memory"] = dlrover(state)
        stalls: dict[str, list[float]] = {name: [] for name in contenders}
        for step in range(1, saves + 1):
            for name, save in contenders.items():
                stalls[name].append(save(step) / gigabytes)
    load_seconds, copy_seconds = restored(state, slots)
    return {"stalls": stalls, "load": load_seconds / gigabytes, "copy": copy_seconds / gigabytes}


def table(found: dict[str, Any], gigabytes: float) -> str:
    rows = [
        f"{date.today()}, {platform.machine()}, {os.cpu_count()} cores, torch {torch.__version__}, "
        f"{gigabytes:g} GB in {TENSORS} tensors, a machine with a load of {os.getloadavg()[0]:.0f}; "
        "seconds a GB until training goes on:",
        "",
        "| | first save | later ones, median | least |",
        "|---|--:|--:|--:|",
    ]
    for name, (first, *later) in found["stalls"].items():
        rows.append(f"| {name} | {first:.3f} | {median(later):.3f} | {min(later):.3f} |")
    rows += ["", f"Load, verified: {found['load']:.3f}; one copy of the state: {found['copy']:.3f}."]
    return "\n".join(rows)


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--gigabytes", type=float, default=1.0)
    parser.add_argument("--saves", type=int, default=8)
    parser.add_argument("--dlrover", metavar="FOLDER")
    parser.add_argument("--document", type=Path)
    args = parser.parse_args()
    found = measure(args.gigabytes, args.saves, args.dlrover)
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
