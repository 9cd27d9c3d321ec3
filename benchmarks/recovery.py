"""How long training stands still when a training process is killed: dlr beside stock torchrun.

Two agents with one process each train a tiny DDP model over gloo. The process of rank 1 gets SIGKILL; the
clock stops when every rank has ended a step in the next world. torchrun runs as its documentation says for
two nodes (c10d rendezvous); dlr runs the same script in two Pods of the embedded cluster, so its figure
includes the API server, the controller and the watch. A trial that passes its deadline counts as hung.
"""

import argparse
import os
import platform
import signal
import socket
import statistics
import subprocess
import sys
import tempfile
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from datetime import date
from pathlib import Path
from typing import TypeVar

import torch

from e2e import jobs
from e2e.embedded import EmbeddedCluster
from e2e.observation import Observation

SCRIPT = Path(__file__).with_name("tiny_ddp.py")
REPORT = Path(__file__).parent.parent / "docs" / "recovery.md"
WORLD_SIZE = 2
VICTIM_RANK = 1
STEPS_BEFORE_KILL = 20
MOST_RESTARTS = 1000
POLL_SECONDS = 0.05  # the ranks note their own times: this only bounds how soon we look


@dataclass(frozen=True)
class Step:
    """A step that one rank ended."""

    world: int
    pid: int
    number: int
    time: float


class Timeline:
    """What the ranks of one job wrote about their steps."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory

    def steps(self, rank: int) -> list[Step]:
        path = self._directory / f"rank-{rank}"
        if not path.exists():
            return []
        whole_lines = path.read_text().rpartition("\n")[0].splitlines()
        return [
            Step(int(world), int(pid), int(number), float(at))
            for world, pid, number, at in map(str.split, whole_lines)
        ]

    def victim(self) -> Step | None:
        """The latest step of the rank to kill, once its world has trained for a while."""
        steps = self.steps(VICTIM_RANK)
        return steps[-1] if steps and steps[-1].number >= STEPS_BEFORE_KILL else None

    def first_step_of_all_after(self, world: int) -> float | None:
        """When the last rank ended its first step in any one world later than `world`."""
        ranks = [self.steps(rank) for rank in range(WORLD_SIZE)]
        later = {step.world for step in ranks[VICTIM_RANK] if step.world > world}
        for candidate in sorted(later):
            firsts = [next((s.time for s in steps if s.world == candidate), None) for steps in ranks]
            ended = [at for at in firsts if at is not None]
            if len(ended) == WORLD_SIZE:
                return max(ended)
        return None


class Contender(ABC):
    """Something that keeps two training processes running."""

    name: str

    @abstractmethod
    def start(self, events: Path) -> None: ...

    @abstractmethod
    def kill(self, victim: Step) -> None:
        """SIGKILL the process that ended this step."""

    @abstractmethod
    def stop(self) -> None: ...


class Torchrun(Contender):
    """Two stock agents on one machine, as on two nodes."""

    name = "torchrun (c10d)"

    def __init__(self) -> None:
        self._agents: list[subprocess.Popen[bytes]] = []

    def start(self, events: Path) -> None:
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            port = free.getsockname()[1]
        command = [
            *(sys.executable, "-m", "torch.distributed.run", f"--nnodes={WORLD_SIZE}", "--nproc-per-node=1"),
            *("--rdzv-backend=c10d", f"--rdzv-endpoint=127.0.0.1:{port}", f"--rdzv-id=recovery-{port}"),
            *(f"--max-restarts={MOST_RESTARTS}", str(SCRIPT)),
        ]
        env = os.environ | {"EVENTS_DIR": str(events), "OMP_NUM_THREADS": "1"}
        with (events / "log").open("wb") as log:
            self._agents = [
                subprocess.Popen(command, env=env, stdout=log, stderr=log, start_new_session=True)
                for _ in range(WORLD_SIZE)
            ]

    def kill(self, victim: Step) -> None:
        os.kill(victim.pid, signal.SIGKILL)

    def stop(self) -> None:
        for agent in self._agents:
            agent.terminate()
        for agent in self._agents:
            try:
                agent.wait(timeout=10)
            except subprocess.TimeoutExpired:
                os.killpg(agent.pid, signal.SIGKILL)
                agent.wait()


class Dlr(Contender):
    """An ElasticJob with two workers on the embedded cluster."""

    name = "dlr"

    def __init__(self, cluster: EmbeddedCluster) -> None:
        self._cluster = cluster
        self._scope = ExitStack()
        self._observation: Observation | None = None

    def start(self, events: Path) -> None:
        self._scope = ExitStack()
        self._observation = self._scope.enter_context(self._cluster.namespace("recovery"))
        variables = {"EVENTS_DIR": str(events), "OMP_NUM_THREADS": "1"}
        container = {
            "name": "main",
            "image": self._cluster.image,
            "command": ["dlr", "run", "--nproc-per-node=1", str(SCRIPT)],
            "env": [{"name": name, "value": value} for name, value in variables.items()],
        }
        manifest = jobs.job(
            "recovery", {"spec": {"restartPolicy": "Never", "containers": [container]}}, WORLD_SIZE
        )
        manifest["spec"]["replicaSpecs"]["worker"]["restartCount"] = MOST_RESTARTS
        self._cluster.apply(manifest, self._observation.namespace)

    def kill(self, victim: Step) -> None:
        """By its Pod: inside it, pids are the Pod's own."""
        assert self._observation is not None
        pod = jobs.current_pods(self._observation, "recovery")[VICTIM_RANK]
        self._cluster.kill_process(self._observation.namespace, pod)

    def stop(self) -> None:
        self._scope.close()


Answer = TypeVar("Answer")


def wait_for(ask: Callable[[], Answer | None], deadline_seconds: float) -> Answer | None:
    """What `ask` answers first that is not None; None when the deadline passes."""
    deadline = time.monotonic() + deadline_seconds
    while time.monotonic() < deadline:
        if (answer := ask()) is not None:
            return answer
        time.sleep(POLL_SECONDS)
    return None


def trial(contender: Contender, deadline_seconds: float) -> float | None:
    """A fresh job, a kill, and the seconds to the next step by all; None when it hung."""
    with tempfile.TemporaryDirectory(prefix="recovery-") as directory:
        timeline = Timeline(Path(directory))
        contender.start(Path(directory))
        try:
            victim = wait_for(timeline.victim, deadline_seconds)
            if victim is None:
                return None
            killed_at = time.monotonic()
            contender.kill(victim)
            recovered_at = wait_for(lambda: timeline.first_step_of_all_after(victim.world), deadline_seconds)
        finally:
            contender.stop()
    return None if recovered_at is None else recovered_at - killed_at


def measure(
    contenders: Sequence[Contender], trials: int, deadline_seconds: float
) -> dict[str, list[float | None]]:
    """Turn by turn, so that whatever else the machine does falls on both."""
    results: dict[str, list[float | None]] = {contender.name: [] for contender in contenders}
    for number in range(1, trials + 1):
        for contender in contenders:
            seconds = trial(contender, deadline_seconds)
            results[contender.name].append(seconds)
            shown = "hung" if seconds is None else f"{seconds:.2f} s"
            print(f"trial {number}: {contender.name}: {shown}", flush=True)
    return results


def table(results: Mapping[str, Sequence[float | None]]) -> str:
    lines = ["| | trials | median | worst | hung | each trial (s) |", "|---|---|---|---|---|---|"]
    for name, trials in results.items():
        seconds = [trial for trial in trials if trial is not None]
        shown = ", ".join("hung" if trial is None else f"{trial:.2f}" for trial in trials)
        median = f"{statistics.median(seconds):.2f} s" if seconds else "none"
        worst = f"{max(seconds):.2f} s" if seconds else "none"
        hung = len(trials) - len(seconds)
        lines.append(f"| {name} | {len(trials)} | {median} | {worst} | {hung} | {shown} |")
    return "\n".join(lines)


def ratio(results: Mapping[str, Sequence[float | None]]) -> str:
    """Of the medians of those trials that recovered."""
    medians = {
        name: statistics.median([trial for trial in trials if trial is not None])
        for name, trials in results.items()
        if any(trial is not None for trial in trials)
    }
    if len(medians) < len(results):
        return "One side never recovered, so there is no ratio."
    return f"Ratio of the medians, torchrun to dlr: {medians[Torchrun.name] / medians[Dlr.name]:.1f}."


def report(results: Mapping[str, Sequence[float | None]], trials: int, deadline_seconds: float) -> str:
    return f"""# Recovery from a killed training process

Seconds from SIGKILL of one of two workers' training process until both have ended a step in the next
world: two agents with one process each, gloo, a tiny DDP model, so that what is measured is detection,
rendezvous and the start of processes (which is mostly `import torch`). A trial that took longer than
{deadline_seconds:.0f} s counts as hung.

{table(results)}

{ratio(results)}

Measured on {date.today()}: {os.cpu_count()} CPU cores, {platform.system()},
Python {platform.python_version()}, torch {torch.__version__}. Both sides ran on the same machine, turn by
turn, each trial with a fresh job. Medians are of the trials that recovered. To run it again:

    python -m benchmarks.recovery --trials {trials}
"""


def main() -> None:
    parser = argparse.ArgumentParser(description="Seconds to recover from a killed training process.")
    parser.add_argument("--trials", type=int, default=7)
    parser.add_argument("--deadline-seconds", type=float, default=60)
    args = parser.parse_args()
    cluster = EmbeddedCluster(nodes=WORLD_SIZE)
    try:
        cluster.start()
        results = measure([Torchrun(), Dlr(cluster)], args.trials, args.deadline_seconds)
    finally:
        cluster.stop()
    REPORT.write_text(report(results, args.trials, args.deadline_seconds))
    print(table(results))
    print(ratio(results))


if __name__ == "__main__":
    main()
