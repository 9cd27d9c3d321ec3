"""Stall of other workers when a process dies: dlr with and without replica groups, and torchft.

    python -m benchmarks.stall --torchft /path/to/a/python/that/has/torchft

Three groups of one process each, or one job of three workers, train with steps of a fixed length over
gloo; a random process is killed with -9 repeatedly. The stall is the longest step of the others after the
kill, minus an undisturbed step. With `--pods` whole Pods of dlr's jobs are deleted instead, without grace,
and with `--width 2048` the state has 100 MB; neither writes the page.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import signal
import statistics
import subprocess
import tempfile
import time
from abc import ABC, abstractmethod
from collections import defaultdict
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any

import torch

from benchmarks.recovery_peers import free_port
from e2e import jobs, processes
from e2e.api import Kind, Object
from e2e.cluster import Cluster
from e2e.embedded import EmbeddedCluster
from e2e.observation import Observation

REPORT = Path(__file__).parent / "results" / "stall.md"
SCRIPT = Path(__file__).parent.parent / "e2e" / "fixtures" / "grouped.py"
TORCHFT = Path(__file__).parent / "stall_torchft.py"
GROUPS = 3
STEP_SECONDS = 0.1
WIDTH = 64
WITHIN_SECONDS = 120.0
LOOK_SECONDS = 0.02
WATCH_SECONDS = 2.0
"""Time after a kill in which a long step counts as its consequence."""
Lines = list[dict[str, Any]]


class Contender(ABC):
    """Training groups, each in a process, which write a line into `folder` for each step."""

    name: str
    folder: Path
    pause_seconds = 2.0
    """Undisturbed training before each kill, in which agents prepare the next processes."""

    @abstractmethod
    def kill(self, group: int) -> float:
        """Kill a group's process with -9; return the time (CLOCK_MONOTONIC). It is restarted."""

    def lines(self) -> Lines:
        """Return the lines of the processes."""
        paths = [path for path in self.folder.iterdir() if path.is_file()]
        found = [line for path in paths for line in path.read_text().splitlines()]
        return [json.loads(line) for line in found if line.endswith("}")]

    def wait_until_all_train(self, since: float) -> None:
        """Wait until each group has made a few steps after a time."""
        deadline = time.monotonic() + WITHIN_SECONDS
        while True:
            steps: dict[int, int] = defaultdict(int)
            for line in self.lines():
                steps[line["group"]] += line["time"] > since
            if len(steps) == GROUPS and min(steps.values()) >= 5:
                return
            if time.monotonic() > deadline:
                raise TimeoutError(f"{self.name}: steps since then are {dict(steps)}")
            time.sleep(LOOK_SECONDS)


class Torchft(Contender):
    """torchft's lighthouse and a process for each group, which is restarted at once when it dies."""

    name = "torchft"

    def __init__(self, python: Path, folder: Path, width: int) -> None:
        self.folder, self._python = folder / "torchft", python
        self.folder.mkdir()
        port = free_port()
        lighthouse = [str(python.parent / "torchft_lighthouse"), "--min_replicas", "2", "--bind"]
        lighthouse += [f"[::]:{port}", "--quorum_tick_ms", "100", "--join_timeout_ms", "10000"]
        self._log = (folder / "torchft.log").open("ab")
        self._variables = {
            "FOLDER": str(self.folder),
            "STEP_SECONDS": str(STEP_SECONDS),
            "WIDTH": str(width),
            "TORCHFT_LIGHTHOUSE": f"http://127.0.0.1:{port}",
            "OMP_NUM_THREADS": "1",
        }
        self._lighthouse = subprocess.Popen(lighthouse, stdout=self._log, stderr=self._log)
        self._groups = {group: self._start(group) for group in range(GROUPS)}

    def _start(self, group: int) -> subprocess.Popen[bytes]:
        port = free_port()
        rank = {"RANK": "0", "WORLD_SIZE": "1", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port)}
        store = (
            "import torch.distributed as dist, runpy, sys; "
            f"store = dist.TCPStore('127.0.0.1', {port}, is_master=True, wait_for_workers=False); "
            f"runpy.run_path({str(TORCHFT)!r}, run_name='__main__')"
        )
        env = os.environ | self._variables | rank | {"REPLICA_GROUP_ID": str(group)}
        return subprocess.Popen([str(self._python), "-c", store], env=env, stdout=self._log, stderr=self._log)

    def kill(self, group: int) -> float:
        at = time.monotonic()
        self._groups[group].send_signal(signal.SIGKILL)
        self._groups[group].wait()
        self._groups[group] = self._start(group)
        return at

    def close(self) -> None:
        """End all processes."""
        for process in (*self._groups.values(), self._lighthouse):
            process.kill()
            process.wait()


class Dlr(Contender):
    """ElasticJob with three replica groups, or without groups, with agents and controller."""

    def __init__(
        self, cluster: Cluster, observation: Observation, width: int, *, grouped: bool, pods: bool
    ) -> None:
        self._pods = pods
        self.name = "dlr" if grouped else "dlr without groups"
        self.pause_seconds = 2.0 if grouped else 8.0  # all three workers' processes restart
        self._pod = "stall-group-{}-worker-0-" if grouped else "stall-worker-{}-"
        self._cluster, self._observation = cluster, observation
        storage = cluster.storage(observation.namespace)
        self.folder = Path(storage.path) / "stall"
        self.folder.mkdir()
        env = {"FOLDER": str(self.folder), "STEP_SECONDS": str(STEP_SECONDS), "WIDTH": str(width)}
        policy: Object = {"lastCallSeconds": 1}
        if grouped:
            policy["replicaGroups"] = {"workers": 1, "min": 2}
        manifest = jobs.scripted(
            cluster,
            "stall",
            GROUPS,
            ["dlr", "run", str(SCRIPT)],
            storage=storage,
            env=env,
            worker={"restartCount": 1_000},
            elasticPolicy=policy,
        )
        cluster.apply(manifest, observation.namespace)

    def kill(self, group: int) -> float:
        pods = self._observation.pods()
        name = next(name for name in pods if name.startswith(self._pod.format(group)))
        pids = processes.training_processes(pods[name]["metadata"]["uid"])
        at = time.monotonic()
        if self._pods:
            namespace = self._observation.namespace
            self._cluster.api().delete(Kind.POD, name, namespace, gracePeriodSeconds=0)
        else:
            os.kill(pids[0].pid, signal.SIGKILL)
        return at


@contextmanager
def dlr(width: int, *, grouped: bool, pods: bool) -> Iterator[Dlr]:
    """Yield dlr on its own embedded cluster."""
    cluster = EmbeddedCluster(nodes=GROUPS)
    cluster.start()
    try:
        with cluster.namespace("stall") as observation:
            yield Dlr(cluster, observation, width, grouped=grouped, pods=pods)
    finally:
        cluster.stop()


@contextmanager
def torchft(python: Path, width: int) -> Iterator[Torchft]:
    """Yield torchft on this machine."""
    with tempfile.TemporaryDirectory() as folder:
        contender = Torchft(python, Path(folder), width)
        try:
            yield contender
        finally:
            contender.close()


@dataclass(frozen=True)
class Outcome:
    """Result of one kill."""

    stall_seconds: float
    return_seconds: float
    """Time from the kill to the first step of the group's next process."""


def measured(contender: Contender, kills: int, seed: int) -> tuple[float, list[Outcome]]:
    """Kill repeatedly; return an undisturbed step's time, and the result of each kill."""
    chance, struck = random.Random(seed), list[tuple[float, int]]()
    contender.wait_until_all_train(0.0)
    for _ in range(kills):
        time.sleep(contender.pause_seconds)
        group = chance.randrange(GROUPS)
        at = contender.kill(group)
        struck.append((at, group))
        contender.wait_until_all_train(at + STEP_SECONDS)
    times: dict[int, list[float]] = defaultdict(list)
    for line in contender.lines():
        times[line["group"]].append(line["time"])
    gaps = [after - before for each in times.values() for before, after in pairwise(sorted(each))]
    step = statistics.median(gaps)
    return step, [_outcome(times, step, at, group) for at, group in struck]


def _outcome(times: dict[int, list[float]], step: float, at: float, group: int) -> Outcome:
    longest = 0.0
    for other, each in times.items():
        if other == group:
            continue
        for before, after in pairwise(sorted(each)):
            if before <= at + WATCH_SECONDS and after >= at and before >= at - 2 * step:
                longest = max(longest, after - before)
    back = min(moment for moment in times[group] if moment > at + step)
    return Outcome(max(longest - step, 0.0), back - at)


def table(found: dict[str, tuple[float, list[Outcome]]]) -> str:
    """Return the table of benchmarks/results/stall.md."""
    lines = [
        "| | kills | a step, s | stall of the others: median | worst | the group trains again: median |",
        "|---|--:|--:|--:|--:|--:|",
    ]
    for name, (step, outcomes) in found.items():
        stalls = [each.stall_seconds for each in outcomes]
        returns = statistics.median(each.return_seconds for each in outcomes)
        lines.append(
            f"| {name} | {len(outcomes)} | {step:.3f} | {statistics.median(stalls):.3f} | "
            f"{max(stalls):.3f} | {returns:.2f} |"
        )
    return "\n".join(lines)


def main() -> None:
    """Measure all contenders in turn, and write the page."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--torchft", type=Path, help="a Python with torchft")
    parser.add_argument("--kills", type=int, default=50, help="kills with groups; at most 15 for the others")
    parser.add_argument("--width", type=int, default=WIDTH, help="width of the model's two layers")
    parser.add_argument("--pods", action="store_true", help="delete Pods instead of killing processes")
    options = parser.parse_args()
    peers = min(options.kills, 15)
    found: dict[str, tuple[float, list[Outcome]]] = {}
    for grouped in (True, False):
        with dlr(options.width, grouped=grouped, pods=options.pods) as contender:
            found[contender.name] = measured(contender, options.kills if grouped else peers, seed=1)
        print(table(found), flush=True)
    if options.torchft is not None:
        with torchft(options.torchft, options.width) as other:
            found[other.name] = measured(other, peers, seed=1)
        print(table(found))
    if options.pods or options.width != WIDTH:
        return
    REPORT.write_text(
        "# Stall of the others\n\n"
        "Written by `python -m benchmarks.stall`. Three replica groups of one process each over gloo, of\n"
        "which a random one is killed with SIGKILL; without groups, three workers with a checkpoint in\n"
        "memory after each step. The stall is the longest step of the others around the\n"
        "kill and the group's return, beyond an undisturbed step. torchft as its examples start it, with\n"
        "its default time-outs, in the same run.\n\n"
        f"torch {torch.__version__}, {os.cpu_count()} cores; load average {os.getloadavg()[0]:.1f} at the "
        f"end.\n\n{table(found)}\n"
    )


if __name__ == "__main__":
    main()
