"""Time from the kill of one of two ranks to the next step, with a large state kept in memory each step.

    python -m benchmarks.checkpoint_recovery --gigabytes 1 --kills 5 [--pod-kills 3] [--dlrover]
        [--document benchmarks/results/checkpoints.md]

A job of two workers on the embedded cluster runs benchmarks/heavy_ddp.py; rank 1 is killed repeatedly.
With --pod-kills its Pod is deleted too, so that its state comes from the other Pod's agent: a small state,
and the large one with steps so long that the other agent has time to fetch each. The same run measures one
copy of the state into fresh memory, by both ranks at once, as they load, and over loopback. With --dlrover
the same is done with DLRover's launcher and flash checkpoint: its local master and two agents, in a venv
that is created once (benchmarks/recovery_peers.py). DLRover verifies nothing.
"""

from __future__ import annotations

import argparse
import mmap
import multiprocessing
import os
import platform
import socket
import tempfile
import time
from collections.abc import Sequence
from concurrent.futures import ProcessPoolExecutor
from datetime import date
from multiprocessing.synchronize import Barrier
from pathlib import Path
from statistics import median

import torch

from benchmarks.checkpoint import insert
from benchmarks.heavy_ddp import TENSORS
from benchmarks.recovery_contender import Contender, Failure
from benchmarks.recovery_dlr import JOB, NODES, Dlr
from benchmarks.recovery_events import WORLD_SIZE, Step, Timeline, wait_for
from benchmarks.recovery_peers import Dlrover, dlrover_venv
from crds.checkpoint_files import slot_count
from e2e.api import Object
from e2e.embedded import EmbeddedCluster

SCRIPT = Path(__file__).with_name("heavy_ddp.py")
SMALL_GIGABYTES = 0.01
TIMEOUT_SECONDS = 60
LONG_STEP_SECONDS = 2.0
"""Length of a step; a peer has two of them to fetch a copy (`agent.slots.replication`)."""
STEPS_BEFORE_KILL = 4
REPLICAS_SECONDS = 120.0
"""Time limit for copies; the first arrive once the agents have their memory."""
BEGIN, END = "<!-- recovery -->", "<!-- end of recovery -->"
SHOWN = "{:.2f} s, scripts after {:.2f}, load {:.2f} (CPU {:.2f}); {} steps redone"

together: Barrier
"""Barrier at which the copying processes wait for each other."""


class Heavy(Dlr):
    """Same job with a state, and memory for it."""

    def __init__(self, cluster: EmbeddedCluster, gigabytes: float, replicas: int = 0) -> None:
        super().__init__(cluster)
        self._gigabytes = gigabytes
        self._replicas = replicas

    def _manifest(self, events: Path) -> Object:
        manifest = super()._manifest(events)
        worker = manifest["spec"]["replicaSpecs"]["worker"]
        (container,) = worker["template"]["spec"]["containers"]
        container["command"][-1] = str(SCRIPT)
        container["env"].append({"name": "GIGABYTES", "value": str(self._gigabytes)})
        if self._replicas:
            container["env"].append({"name": "STEP_SECONDS", "value": str(LONG_STEP_SECONDS)})
        slots = slot_count(1, self._replicas)
        size = f"{int(slots * (self._gigabytes * 1e9 + (1 << 24)) / 2**20) + 1}Mi"
        worker["memoryCheckpoint"] = {"size": size, "replicas": self._replicas}
        return manifest

    def strike(self, failure: Failure, victim: Step) -> float:
        assert self._observation is not None
        if failure is Failure.POD:
            name = f"copies of step {victim.number} in other Pods"
            self._observation.wait_for(name, lambda: self._have_copies(victim.number), REPLICAS_SECONDS)
        return super().strike(failure, victim)

    def _have_copies(self, step: int) -> bool:
        """Return whether each worker has reported that its peer has a checkpoint of that step or later."""
        assert self._observation is not None
        agents = [worker.get("status", {}).get("agent") or {} for worker in self._observation.workers(JOB)]
        return all((agent.get("memory", {}).get("replicatedStep") or 0) >= step for agent in agents)


Found = tuple[float, float, float, float, int]
"""Result of a kill: seconds to the next step of all ranks, seconds until all scripts run again, seconds of
the slowest `load`, CPU seconds of the costliest one, and steps redone."""


class HeavyDlrover(Dlrover):
    """Same job with DLRover."""

    def __init__(self, venv: Path, gigabytes: float) -> None:
        super().__init__(venv, SCRIPT, GIGABYTES=str(gigabytes), SAVED_BY="dlrover")


def strike(
    contender: Contender, kills: int, deadline_seconds: float, failure: Failure = Failure.PROCESS
) -> list[Found]:
    found: list[Found] = []
    with tempfile.TemporaryDirectory(prefix="recovery-") as directory:
        events = Path(directory)
        contender.start(events, observed=False)
        try:
            timeline, world, resumed = Timeline(events), 0, 0
            for _ in range(kills):
                first = resumed
                victim = wait_for(
                    lambda: timeline.victim(world, first + STEPS_BEFORE_KILL),  # noqa: B023 (called at once)
                    deadline_seconds,
                )
                assert victim is not None, "the job does not train"
                struck_at = contender.strike(failure, victim)
                world = victim.world
                after = wait_for(lambda: timeline.recovered_after(world), deadline_seconds)  # noqa: B023
                assert after is not None, "the job does not train again"
                loads = [line for rank in range(WORLD_SIZE) for line in loads_of(events, rank, after[0])]
                resumed = int(loads[0][1])
                last = last_step(events, world)
                began = max(start.began for start in timeline.starts(after[0])) - struck_at
                load, cpu = (max(float(line[column]) for line in loads) for column in (2, 3))
                found.append((after[1] - struck_at, began, load, cpu, last - resumed))
                print(SHOWN.format(*found[-1]))
        finally:
            contender.stop()
    return found


def loads_of(events: Path, rank: int, world: int) -> list[list[str]]:
    lines = [line.split() for line in (events / f"load-{rank}").read_text().splitlines()]
    return [line for line in lines if int(line[0]) == world]


def last_step(events: Path, world: int) -> int:
    """Return the highest step that a rank completed in that world."""
    lines = [line.split() for line in (events / "rank-0").read_text().splitlines()]
    return max(int(line[2]) for line in lines if int(line[0]) == world)


def sent_over_loopback(gigabytes: float) -> float:
    """Return the seconds to receive another process's bytes into fresh memory; the median of three."""
    nbytes = int(gigabytes * 1e9)
    with socket.create_server(("127.0.0.1", 0)) as server:
        context = multiprocessing.get_context("spawn")
        sender = context.Process(target=_send, args=(nbytes, server.getsockname()))
        sender.start()
        server.settimeout(TIMEOUT_SECONDS)
        connection, _ = server.accept()
        with connection:
            connection.settimeout(TIMEOUT_SECONDS)
            seconds = median(timed_receipt(connection, fresh_memory(nbytes)) for _ in range(3))
        sender.join()
    return seconds


def timed_receipt(connection: socket.socket, buffer: memoryview) -> float:
    began, there = time.monotonic(), 0
    connection.sendall(b"!")
    while there < len(buffer):
        received = connection.recv_into(buffer[there:])
        assert received, "the other process is gone"
        there += received
    return time.monotonic() - began


def _send(nbytes: int, address: tuple[str, int]) -> None:
    data = bytearray(nbytes)
    with socket.create_connection(address, TIMEOUT_SECONDS) as connection:
        while connection.recv(1):
            connection.sendall(data)


def copied_at_once(gigabytes: float) -> float:
    """Return the seconds of one copy into fresh memory, by one process per rank at once."""
    context = multiprocessing.get_context("spawn")
    barrier = context.Barrier(WORLD_SIZE)
    with ProcessPoolExecutor(WORLD_SIZE, context, _share, (barrier,)) as pool:
        return max(pool.map(_copied, [gigabytes] * WORLD_SIZE))


def _share(barrier: Barrier) -> None:
    global together
    together = barrier
    torch.set_num_threads(1)


def _copied(gigabytes: float) -> float:
    source = [torch.ones(int(gigabytes * 1e9 / 4 / TENSORS)) for _ in range(TENSORS)]
    return median(timed_copy(source, [fresh_like(tensor) for tensor in source]) for _ in range(3))


def fresh_like(tensor: torch.Tensor) -> torch.Tensor:
    return torch.frombuffer(fresh_memory(tensor.nbytes), dtype=tensor.dtype).view(tensor.shape)


def fresh_memory(nbytes: int) -> memoryview:
    """Return untouched memory; memory from malloc may have been used before."""
    return memoryview(mmap.mmap(-1, nbytes))


def timed_copy(source: list[torch.Tensor], target: list[torch.Tensor]) -> float:
    together.wait(TIMEOUT_SECONDS)
    began = time.monotonic()
    for into, tensor in zip(target, source, strict=True):
        into.copy_(tensor)
    return time.monotonic() - began


def table(gigabytes: float, found: dict[str, list[Found]]) -> str:
    rows = [
        f"{date.today()}, {platform.machine()}, {os.cpu_count()} cores for ranks, agents and the cluster, "
        f"torch {torch.__version__}, a load of {os.getloadavg()[0]:.0f}; {gigabytes:g} GB a rank, saved each "
        "step; rank 1 is killed; seconds:",
    ]
    for name, of_one in found.items():
        seconds, begins, loads, load_cpus, redone = zip(*of_one, strict=True)
        rows += [
            "",
            f"| {name}; {len(of_one)} times | median | least | most |",
            "|---|--:|--:|--:|",
            row("kill to the next step of both ranks", seconds),
            row("of it until both scripts run again", begins),
            row("of it loading, the slower rank's", loads),
            row("CPU seconds of this", load_cpus),
            row("steps redone", redone),
        ]
    rows += [
        "",
        f"One copy of the state into fresh memory, by both at once, as they load: "
        f"{copied_at_once(gigabytes):.2f} s; over loopback: {sent_over_loopback(gigabytes):.2f} s.",
    ]
    return "\n".join(rows)


def row(name: str, found: Sequence[float]) -> str:
    return f"| {name} | {median(found):.2f} | {min(found):.2f} | {max(found):.2f} |"


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--gigabytes", type=float, default=1.0)
    parser.add_argument("--kills", type=int, default=5)
    parser.add_argument("--pod-kills", type=int, default=0)
    parser.add_argument("--deadline-seconds", type=float, default=180)
    parser.add_argument("--dlrover", action="store_true")
    parser.add_argument("--document", type=Path)
    args = parser.parse_args()
    torch.set_num_threads(1)
    found: dict[str, list[Found]] = {}
    cluster = EmbeddedCluster(nodes=NODES)
    try:
        cluster.start()
        found["dlr, verified"] = strike(Heavy(cluster, args.gigabytes), args.kills, args.deadline_seconds)
        for size in (SMALL_GIGABYTES, args.gigabytes) if args.pod_kills else ():
            found[f"dlr, the Pod lost, {size:g} GB from its peer, steps of {LONG_STEP_SECONDS:g} s"] = strike(
                Heavy(cluster, size, replicas=1), args.pod_kills, args.deadline_seconds, Failure.POD
            )
    finally:
        cluster.stop()
    if args.dlrover:
        theirs = HeavyDlrover(dlrover_venv(), args.gigabytes)
        found[theirs.name] = strike(theirs, args.kills, args.deadline_seconds)
    text = table(args.gigabytes, found)
    print(text)
    if args.document is not None:
        insert(args.document, BEGIN, text, END)


if __name__ == "__main__":
    main()
