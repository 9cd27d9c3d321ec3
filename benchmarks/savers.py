"""What a save to storage costs the savers of all ranks, as ranks become more.

    python -m benchmarks.savers --ranks 2 8 32 --paper 512 2048

Each rank has its rows of each tensor, as with FSDP. `--ranks` has as many real savers, a process each, and
tells their processor time, as more than the machine has cores wait for each other. `--paper` has the
files of as many ranks, and two savers that read them: rank 0's, which decides who writes what, and the
last rank's.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import statistics
import sys
import tempfile
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch

from agent.slots.format import Mark, Part, lay_out
from agent.slots.slot import Slot
from dlr.checkpoint import saver, storage
from dlr.checkpoint.files import files_at
from dlr.checkpoint.plan import Piece
from dlr.checkpoint.sharing import Request, Savers
from dlr.checkpoint.state import RNG, VALUES

ROW_WIDTH = 16
"""Elements of each rank's one row of each tensor: what is measured is what savers tell each other."""
STEP, ATTEMPT = 1, "start"
SCRATCH = Path("/dev/shm")


@dataclass(frozen=True)
class Cost:
    """What one saver took."""

    cpu_seconds: float
    opened: int
    """Files that it opened below the checkpoint's path."""
    read_bytes: int
    memory_bytes: int
    """Growth of its peak."""


def measured(path: Path, run: Callable[[], None]) -> Cost:
    """Run something in a process of its own, and return what it took."""
    results, writing = os.pipe()
    if (pid := os.fork()) == 0:
        os.write(writing, json.dumps(asdict(_measured_here(path, run))).encode())
        os._exit(0)
    os.close(writing)
    with os.fdopen(results, "rb") as answer:
        data = answer.read()
    os.waitpid(pid, 0)
    return Cost(**json.loads(data))


def _measured_here(path: Path, run: Callable[[], None]) -> Cost:
    opened = 0

    def note(event: str, arguments: tuple[Any, ...]) -> None:
        nonlocal opened
        opened += event == "open" and str(arguments[0]).startswith(str(path))

    Path("/proc/self/clear_refs").write_text("5")  # the peak begins here, not with the parent's
    sys.addaudithook(note)
    before = _status("VmRSS"), _read_bytes(), time.process_time()
    run()
    return Cost(
        time.process_time() - before[2],
        opened,
        _read_bytes() - before[1],
        max(_status("VmHWM") - before[0], 0),
    )


def _status(name: str) -> int:
    for line in Path("/proc/self/status").read_text().splitlines():
        if line.startswith(f"{name}:"):
            return int(line.split()[1]) << 10
    raise ValueError(f"/proc/self/status has no {name}")


def _read_bytes() -> int:
    return int(Path("/proc/self/io").read_text().split()[1])


def real(ranks: int, tensors: int) -> list[Cost]:
    """Save once with as many savers, and return what each took, by rank."""
    path = Path(tempfile.mkdtemp(prefix="dlr-savers-", dir=SCRATCH))
    children = []
    for rank in range(ranks):
        results, writing = os.pipe()
        if (pid := os.fork()) == 0:
            cost = _measured_here(path, lambda: _save(path, rank, ranks, tensors))  # noqa: B023
            os.write(writing, json.dumps(asdict(cost)).encode())
            os._exit(0)
        os.close(writing)
        children.append((pid, results))
    costs = []
    for pid, results in children:
        with os.fdopen(results, "rb") as answer:
            costs.append(Cost(**json.loads(answer.read())))
        os.waitpid(pid, 0)
    assert storage.is_complete(files_at(path), STEP), "it is not saved"
    shutil.rmtree(path)
    return costs


def _save(path: Path, rank: int, ranks: int, tensors: int) -> None:
    own = [Part(name, "uint8", (9,), 9) for name in (VALUES, RNG)]
    rows = [
        Part(
            f"model.layers.{number}.weight",
            "float32",
            (1, ROW_WIDTH),
            4 * ROW_WIDTH,
            (ranks, ROW_WIDTH),
            (rank, 0),
        )
        for number in range(tensors)
    ]
    header = lay_out([*own, *rows])
    slot = Slot.create("benchmark", header.slot_bytes)
    slot.begin()
    slot.commit(Mark(1, STEP, rank, ranks), header)
    slot.sum_up()
    request = Request(slot.path, STEP, 1, rank, ranks, str(path), ATTEMPT, "", None)
    saver.persist(request, lambda: None)


def on_paper(ranks: int, tensors: int) -> tuple[Cost, Cost]:
    """Decide who writes what of as many ranks; return what that took rank 0's saver, and the last one's."""
    path = Path(tempfile.mkdtemp(prefix="dlr-savers-", dir=SCRATCH))
    files, folder = files_at(path), storage.try_folder(STEP, ATTEMPT)
    try:
        for rank in range(ranks):
            Savers(files, folder, rank, ranks).announce(_pieces(rank, ranks, tensors))

        def lead() -> None:
            shares = Savers(files, folder, 0, ranks).lead(lambda _: {})
            assert all(len(share.numbers) == tensors for share in shares.of_ranks)

        def follow() -> None:
            last = ranks - 1
            mine = Savers(files, folder, last, ranks).follow(_pieces(last, ranks, tensors), lambda _: {})
            assert len(mine) == tensors

        return measured(path, lead), measured(path, follow)
    finally:
        shutil.rmtree(path)


def _pieces(rank: int, ranks: int, tensors: int) -> list[Piece]:
    whole = ranks, ROW_WIDTH
    return [
        Piece(
            f"model.layers.{n}.weight", "float32", (1, ROW_WIDTH), whole, (rank, 0), 4 * ROW_WIDTH, rank * n
        )
        for n in range(tensors)
    ]


def main() -> None:
    """Print both tables."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument(
        "--ranks", type=int, nargs="*", default=[2, 4, 8, 16, 32], help="numbers of real savers"
    )
    parser.add_argument("--paper", type=int, nargs="*", default=[512, 2048], help="numbers of ranks on paper")
    parser.add_argument("--tensors", type=int, default=1000, help="of each rank, of the real savers")
    parser.add_argument("--paper-tensors", type=int, default=250, help="of each rank on paper")
    args = parser.parse_args()
    torch.set_num_threads(1)  # as a saver has it
    print(f"{args.tensors} tensors a rank\n")
    print("| savers | CPU s each | rank 0's | the others' | files opened each | MB grown, rank 0, others |")
    print("|---|---|---|---|---|---|")
    for ranks in args.ranks:
        costs = real(ranks, args.tensors)
        others = costs[1:] or costs
        print(
            f"| {ranks} | {statistics.mean(cost.cpu_seconds for cost in costs):.3f} "
            f"| {costs[0].cpu_seconds:.3f} | {statistics.mean(cost.cpu_seconds for cost in others):.3f} "
            f"| {statistics.mean(cost.opened for cost in costs):.0f} "
            f"| {costs[0].memory_bytes / 1e6:.0f}, {max(cost.memory_bytes for cost in others) / 1e6:.0f} |",
            flush=True,
        )
    print(f"\n{args.paper_tensors} tensors a rank, on paper\n")
    print("| ranks | saver | files opened | MB read | MB grown | CPU s |")
    print("|---|---|---|---|---|---|")
    for ranks in args.paper:
        for name, cost in zip(
            ("rank 0's", "the last rank's"), on_paper(ranks, args.paper_tensors), strict=True
        ):
            print(
                f"| {ranks} | {name} | {cost.opened} | {cost.read_bytes / 1e6:.1f} "
                f"| {cost.memory_bytes / 1e6:.0f} | {cost.cpu_seconds:.2f} |",
                flush=True,
            )


if __name__ == "__main__":
    main()
