"""Notes of the ranks of a job under benchmarks/recovery.py (benchmarks/tiny_ddp.py)."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar

WORLD_SIZE = 2
VICTIM_RANK = 1
STEPS_BEFORE_KILL = 20
POLL_SECONDS = 0.05  # the ranks note their own times, so this affects no figure

Answer = TypeVar("Answer")


@dataclass(frozen=True)
class Step:
    """Completed step of one rank. All times are of CLOCK_MONOTONIC, in seconds."""

    world: int
    pid: int
    number: int
    time: float


@dataclass(frozen=True)
class Start:
    """Start of one rank in a world."""

    world: int
    pid: int
    began: float
    imported: float
    initialised: float


class Lines:
    """Reader of a growing file."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._offset = 0

    def new(self) -> list[list[str]]:
        """Return the words of each line completed since the last call."""
        if not self._path.exists():
            return []
        with self._path.open("rb") as file:
            file.seek(self._offset)
            whole = file.read().rpartition(b"\n")[0]
        if not whole:
            return []
        self._offset += len(whole) + 1
        return [line.split() for line in whole.decode().splitlines()]


class Timeline:
    """Steps and starts of one job's ranks."""

    def __init__(self, directory: Path) -> None:
        self._step_lines = [Lines(directory / f"rank-{rank}") for rank in range(WORLD_SIZE)]
        self._start_lines = [Lines(directory / f"start-{rank}") for rank in range(WORLD_SIZE)]
        self._firsts: list[dict[int, float]] = [{} for _ in range(WORLD_SIZE)]
        self._starts: list[dict[int, Start]] = [{} for _ in range(WORLD_SIZE)]
        self._latest: list[Step | None] = [None] * WORLD_SIZE

    def victim(self, later_than: int = 0, at_least: int = STEPS_BEFORE_KILL) -> Step | None:
        """Return the latest step of the rank to kill, once all ranks have trained for a while in a new
        world."""
        self._read()
        steps = [step for step in self._latest if step is not None and step.number >= at_least]
        if len(steps) < WORLD_SIZE or len({step.world for step in steps}) > 1:
            return None
        return steps[VICTIM_RANK] if steps[VICTIM_RANK].world > later_than else None

    def recovered_after(self, world: int) -> tuple[int, float] | None:
        """Return the first world after `world` in which all ranks ended a step, and the time of the last."""
        self._read()
        for candidate in sorted(self._firsts[VICTIM_RANK]):
            if candidate > world and all(candidate in firsts for firsts in self._firsts):
                return candidate, max(firsts[candidate] for firsts in self._firsts)
        return None

    def starts(self, world: int) -> list[Start]:
        """Return the starts of all ranks in this world, as far as noted."""
        self._read()
        return [starts[world] for starts in self._starts if world in starts]

    def _read(self) -> None:
        for rank in range(WORLD_SIZE):
            for world, pid, began, imported, initialised in self._start_lines[rank].new():
                start = Start(int(world), int(pid), float(began), float(imported), float(initialised))
                self._starts[rank][start.world] = start
            for world, pid, number, at in self._step_lines[rank].new():
                step = Step(int(world), int(pid), int(number), float(at))
                self._firsts[rank].setdefault(step.world, step.time)
                self._latest[rank] = step


def wait_for(ask: Callable[[], Answer | None], deadline_seconds: float) -> Answer | None:
    """Return the first answer of `ask` that is not None; None after the deadline."""
    deadline = time.monotonic() + deadline_seconds
    while time.monotonic() < deadline:
        if (answer := ask()) is not None:
            return answer
        time.sleep(POLL_SECONDS)
    return None
