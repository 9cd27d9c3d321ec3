"""What an agent does for training processes, as far as checkpoints need it: slots, the file, the start."""

from __future__ import annotations

import json
import os
import socket
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch.distributed import TCPStore  # type: ignore[attr-defined]

from agent.slots.format import Mark
from agent.slots.slot import Slot
from dlr.checkpoint import persistence
from tests.checkpoint import savers, training
from tests.forks import forks


class Slots:
    """Memory of an agent, for each rank some slots, which outlive the processes that write into them."""

    def __init__(self, nbytes: int = 1 << 18, each: int = 3) -> None:
        self._nbytes, self._each = nbytes, each
        self._descriptors: dict[int, list[int]] = {}

    def paths(self, rank: int) -> list[str]:
        for _ in range(self._each - len(self._descriptors.setdefault(rank, []))):
            descriptor = os.memfd_create(f"slot-{rank}")
            os.ftruncate(descriptor, self._nbytes)
            self._descriptors[rank].append(descriptor)
        return [f"/proc/{os.getpid()}/fd/{descriptor}" for descriptor in self._descriptors[rank]]

    def slot(self, rank: int, number: int) -> Slot:
        return Slot.open(self.paths(rank)[number])

    def held(self) -> dict[Mark, str]:
        """Every whole checkpoint of a rank, and where it is."""
        found = {}
        for rank in list(self._descriptors):
            for path in self.paths(rank):
                slot = Slot.open(path)
                slot.sum_up()
                if (mark := slot.mark) is not None:
                    found[mark] = path
                slot.close()
        return found

    def newest(self) -> dict[int, tuple[Mark, str]] | None:
        """The newest checkpoint that all of its ranks have, by rank."""
        held = self.held()
        for mark in sorted(held, reverse=True):
            whole = {
                rank: (other, held[other])
                for rank in range(mark.world_size)
                if (other := Mark(mark.round, mark.step, rank, mark.world_size)) in held
            }
            if len(whole) == mark.world_size:
                return whole
        return None

    def reset_newer(self, step: int, round: int) -> None:
        """What is newer than what is agreed on has not happened."""
        for mark, path in self.held().items():
            if (mark.round, mark.step) > (round, step):
                slot = Slot.open(path)
                slot.begin()
                slot.close()

    def close(self) -> None:
        for descriptors in self._descriptors.values():
            for descriptor in descriptors:
                os.close(descriptor)


def resume_of(slots: Slots, world: int, rank: int) -> dict[str, Any] | None:
    """What the agent tells a rank of a world to go on from."""
    newest = slots.newest()
    if newest is None:
        return None
    mark = newest[0][0]
    slots.reset_newer(mark.step, mark.round)
    told = {"round": mark.round, "step": mark.step, "world_size": mark.world_size}
    if mark.world_size == world:
        return {**told, "slot": newest[rank][1]}
    return {**told, "shards": {str(old): path for old, (_, path) in newest.items()}}


def start(
    folder: Path,
    world: int,
    *arguments: str,
    slots: Slots | None = None,
    round: int = 1,
    resume: str | None = "newest",
    environ: Mapping[str, str] | None = None,
    main: Callable[[list[str]], None] = training.main,
    path: str | None = None,
) -> list[Any]:
    """Start a training script on as many ranks. Without `slots`, there is no agent.

    Args:
        path: of the checkpoints; by default in the folder.
    """
    # Not rank 0's, which may come to its end while others still begin.
    store = TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)
    processes = []
    for rank in range(world):
        env = {
            **os.environ,
            "RANK": str(rank),
            "LOCAL_RANK": str(rank),
            "WORLD_SIZE": str(world),
            "LOCAL_WORLD_SIZE": str(world),
            "MASTER_ADDR": "127.0.0.1",
            "MASTER_PORT": str(store.port),
            "TORCHELASTIC_USE_AGENT_STORE": "True",
            "OMP_NUM_THREADS": "1",
            "TORCHELASTIC_RESTART_COUNT": str(round),
            **(environ or {}),
        }
        if slots is not None:
            file = folder / f"checkpoint-{rank}.json"
            told = resume_of(slots, world, rank) if resume == "newest" else None
            file.write_text(json.dumps({"round": round, "slots": slots.paths(rank), "resume": told}))
            env["DLR_CHECKPOINT_FILE"] = str(file)
        arguments_of_rank = [str(folder / "out"), path or str(folder / "path"), *arguments]
        errors = folder / f"err.{round}.{rank}"
        control = savers.server().control
        process = forks.Process(target=_train, args=(env, arguments_of_rank, errors, main, control))
        process.start()
        process.store = store
        processes.append(process)
    return processes


def _train(
    environ: dict[str, str],
    arguments: list[str],
    errors: Path,
    main: Callable[[list[str]], None],
    control: socket.socket,
) -> None:
    os.environ.clear()
    os.environ.update(environ)
    with errors.open("wb") as file:
        os.dup2(file.fileno(), 2)
    persistence.start_saver = partial(savers.start_saver, control)
    main(arguments)


def run(folder: Path, world: int, *arguments: str, **options: Any) -> None:
    """Start it, and wait for its end, which is a good one."""
    processes = start(folder, world, *arguments, **options)
    for process in processes:
        process.join(300)
    codes = [process.exitcode for process in processes]
    round = options.get("round", 1)
    assert codes == [0] * world, [(folder / f"err.{round}.{rank}").read_text() for rank in range(world)]


def lines(folder: Path, rank: int = 0) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (folder / f"out.{rank}").read_text().splitlines()]


def assert_undisturbed(folder: Path, steps: int, model: str = "plain", *arguments: str) -> None:
    """Make sure that `final` in the folder is what one process alone comes to in so many steps."""
    whole, nowhere = folder / "whole", folder / "nowhere"
    of_training = ["--steps", str(steps), "--model", model, "--final", str(whole), *arguments]
    training.main([str(whole), str(nowhere), *of_training])
    expected, found = torch.load(whole), torch.load(folder / "final")
    assert len(found) == len(expected)
    for name, tensor in found.items():
        torch.testing.assert_close(tensor, expected[name.removeprefix("module.")], rtol=1e-5, atol=1e-6)
