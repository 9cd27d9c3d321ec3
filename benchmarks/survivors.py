"""Pause of training when one process of four is killed, with and without surviving processes.

Two Pods with two processes each train a small FSDP2 model over gloo (e2e/fixtures/survivors.py) on the
embedded cluster. A process is killed; the clock stops when every rank has ended its next step. The same
script runs with `with step`, without it, so that all processes restart, and with spare processes; it
begins at once, or after five seconds that represent a compilation and a device's context. Turns alternate,
so that other load on the machine affects all.

    DLR_TORCH_NEXT_PYTHON=…/bin/python python -m benchmarks.survivors
"""

from __future__ import annotations

import argparse
import os
import statistics
from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path

from e2e.embedded import EmbeddedCluster
from e2e.survivors import RANKS, Survivors

RESULT = Path(__file__).parent / "results" / "survivors.md"


@dataclass
class Way:
    """Variant of a job's reaction to the death of a process, and its cost."""

    name: str
    lives: bool
    spares: int = 0
    start_seconds: int = 0
    """Seconds before the script builds its model."""
    pauses: list[float] = field(default_factory=list)
    """Seconds from each kill to the next step of all ranks."""
    lived: int = 0
    """Processes that survived a kill, of three each."""

    @property
    def row(self) -> str:
        pauses = sorted(self.pauses)
        return (
            f"| {self.name} | {self.start_seconds} | {statistics.median(pauses):.2f} | {pauses[0]:.2f} | "
            f"{pauses[-1]:.2f} | {self.lived} of {(RANKS - 1) * len(pauses)} |"
        )


def ways() -> list[Way]:
    """Return the variants, those that begin at once first."""
    return [
        each
        for start_seconds in (0, 5)
        for each in (
            Way("all start again", lives=False, start_seconds=start_seconds),
            Way("the others live on", lives=True, start_seconds=start_seconds),
            Way("the others live on, spare processes", lives=True, spares=1, start_seconds=start_seconds),
        )
    ]


def kills(cluster: EmbeddedCluster, way: Way, count: int) -> Iterator[tuple[float, int]]:
    """Kill `count` processes of one job; yield the pause of each, and the number of survivors."""
    env = {"START_SECONDS": str(way.start_seconds), "LIVES": str(int(way.lives))}
    with cluster.namespace("survivors") as observation:
        world = Survivors(cluster, observation, "fsdp", env=env, spareProcesses=way.spares)
        victims: list[int] = []
        for number in range(count):
            world.await_steps()
            if way.spares:
                world.await_spares(victims)
            victims.append(number % RANKS)
            before, round_ = world.pids(), world.round()
            killed = world.kill(victims[-1])
            observation.wait_for("the next round", lambda: world.round() > round_)  # noqa: B023 (called at once)
            world.await_steps()
            after = world.pids()
            yield world.pause(killed), sum(before[rank] == after[rank] for rank in range(RANKS))


def report(found: list[Way], load: float) -> str:
    """Return the page with the table."""
    rows = "\n".join(way.row for way in found)
    return (
        "# A killed process, where its peers live on\n\n"
        "Seconds from the kill of one process of four (two Pods, FSDP2 over gloo, a checkpoint in memory\n"
        "each step) to the next step of all, on the embedded cluster. *Start*: seconds that the script\n"
        "takes before it builds its model, as for a compilation and a device's context.\n\n"
        "| | start | median | least | most | processes that lived |\n|---|--:|--:|--:|--:|--:|\n"
        f"{rows}\n\nBy `python -m benchmarks.survivors`, turns interleaved; load before: {load:.1f}, "
        f"{os.cpu_count()} cores.\n"
    )


def main() -> None:
    parser = argparse.ArgumentParser(description="Seconds to the next step after a process is killed.")
    parser.add_argument("--kills", type=int, default=4, help="process kills for each variant and turn")
    parser.add_argument("--turns", type=int, default=2)
    arguments = parser.parse_args()
    found, load = ways(), os.getloadavg()[0]
    with ExitStack() as scope:
        cluster = EmbeddedCluster(nodes=4)
        scope.callback(cluster.stop)
        cluster.start()
        for turn in range(arguments.turns):
            for way in found:
                for pause, lived in kills(cluster, way, arguments.kills):
                    way.pauses.append(pause)
                    way.lived += lived
                print(f"turn {turn + 1}: {way.row}", flush=True)
    RESULT.write_text(report(found, load))
    print(RESULT.read_text())


if __name__ == "__main__":
    main()
