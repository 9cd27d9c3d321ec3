"""torchrun and DLRover as contenders: two agents each on this machine, as on two nodes.

For a killed Pod, agent and training process are killed, and another agent is started at once, as in an
ideal cluster that takes no time to notice, schedule and start a container.
"""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path

import torch

from benchmarks.recovery_contender import MOST_RESTARTS, SCRIPT, Contender, Failure
from benchmarks.recovery_events import WORLD_SIZE, Step
from e2e import processes

TERM_SECONDS = 5.0
DLROVER_VERSION = "0.6.1"


class LocalAgents(Contender):
    """Contender with processes on this machine; those of one job have its events' folder in their
    environment.

    Args:
        variables: further environment variables.
    """

    failures = frozenset({Failure.PROCESS, Failure.POD})

    def __init__(self, **variables: str) -> None:
        self._variables = variables
        self._events = Path()
        self._started: list[subprocess.Popen[bytes]] = []
        self._agents: dict[int, subprocess.Popen[bytes]] = {}

    def strike(self, failure: Failure, victim: Step) -> float:
        if failure is Failure.PROCESS:
            struck_at = time.monotonic()
            os.kill(victim.pid, signal.SIGKILL)
            return struck_at
        node = next(node for node, agent in self._agents.items() if victim.pid in descendants(agent.pid))
        pids = [self._agents[node].pid, *descendants(self._agents[node].pid)]
        struck_at = time.monotonic()
        for pid in pids:
            os.kill(pid, signal.SIGKILL)
        self._start_agent(node)
        return struck_at

    def stop(self) -> None:
        for process in self._started:
            process.terminate()
        deadline = time.monotonic() + TERM_SECONDS
        while processes.mentioning(str(self._events)) and time.monotonic() < deadline:
            for process in self._started:
                process.poll()
            time.sleep(0.1)
        for pid in processes.mentioning(str(self._events)):
            os.kill(pid, signal.SIGKILL)
        for process in self._started:
            process.wait()
        self._started = []

    def _run(self, command: list[str], log: str, **variables: str) -> subprocess.Popen[bytes]:
        """Start a process of the job."""
        ours = {"EVENTS_DIR": str(self._events), "OMP_NUM_THREADS": "1"} | self._variables
        with (self._events / log).open("ab") as output:
            process = subprocess.Popen(
                command,
                env=os.environ | ours | variables,
                stdout=output,
                stderr=output,
                start_new_session=True,
            )
        self._started.append(process)
        return process

    def _start_agent(self, node: int) -> None:
        raise NotImplementedError


class Torchrun(LocalAgents):
    """torchrun, started as torch's documentation shows for two nodes."""

    name = "torchrun (c10d)"

    def __init__(self) -> None:
        super().__init__()
        self._port = 0

    def start(self, events: Path, *, observed: bool) -> None:
        self._events, self._port = events, free_port()
        for node in range(WORLD_SIZE):
            self._start_agent(node)

    def _start_agent(self, node: int) -> None:
        command = [
            *(sys.executable, "-m", "torch.distributed.run", f"--nnodes={WORLD_SIZE}", "--nproc-per-node=1"),
            *("--rdzv-backend=c10d", f"--rdzv-endpoint=127.0.0.1:{self._port}", f"--rdzv-id={self._port}"),
            *(f"--max-restarts={MOST_RESTARTS}", str(SCRIPT)),
        ]
        self._agents[node] = self._run(command, f"agent-{node}.log")


class Dlrover(LocalAgents):
    """DLRover, set up for two nodes as its operator does, with its local master."""

    name = f"DLRover {DLROVER_VERSION}"

    def __init__(self, venv: Path, script: Path = SCRIPT, **variables: str) -> None:
        super().__init__(**variables)
        self._bin = venv / "bin"
        self._script = script
        self._master = ""

    def start(self, events: Path, *, observed: bool) -> None:
        self._events = events
        port = free_port()
        self._master = f"127.0.0.1:{port}"
        command = [str(self._bin / "python"), "-m", "dlrover.python.master.main", "--platform=local"]
        self._run(
            [*command, f"--port={port}", f"--node_num={WORLD_SIZE}", "--job_name=recovery"], "master.log"
        )
        for node in range(WORLD_SIZE):
            self._start_agent(node)

    def _start_agent(self, node: int) -> None:
        self._agents[node] = self._run(
            [
                *(str(self._bin / "dlrover-run"), f"--nnodes={WORLD_SIZE}", "--nproc-per-node=1"),
                *(f"--max-restarts={MOST_RESTARTS}", str(self._script)),
            ],
            f"agent-{node}.log",
            DLROVER_MASTER_ADDR=self._master,
            # Its sockets and shared memory use this name: two nodes on one machine must not share them.
            ELASTIC_JOB_NAME=f"recovery-{self._master.rpartition(':')[2]}-{node}",
            NODE_TYPE="worker",
            NODE_RANK=str(node),
            NODE_ID=str(node),
            NODE_NUM=str(WORLD_SIZE),
        )


def dlrover_venv() -> Path:
    """Return a venv with DLRover and our version of torch, created on first use in two minutes.

    Raises:
        subprocess.CalledProcessError: an installation failed; pip printed the reason.
    """
    release = torch.__version__.partition("+")[0]
    cache = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
    venv = cache / "dlr" / f"dlrover-{DLROVER_VERSION}-torch-{release}"
    ready = venv / ".ready"
    if ready.exists():
        return venv
    print(f"installing DLRover into {venv}", flush=True)
    subprocess.run([sys.executable, "-m", "venv", "--clear", str(venv)], check=True)
    pip = [str(venv / "bin" / "python"), "-m", "pip", "install", "--quiet", "--disable-pip-version-check"]
    subprocess.run([*pip, f"torch=={release}", "numpy"], check=True)
    subprocess.run([*pip, f"dlrover[torch,k8s]=={DLROVER_VERSION}", "protobuf"], check=True)
    ready.touch()
    return venv


def descendants(pid: int) -> list[int]:
    """Return all living descendants of a process."""
    found: list[int] = []
    for task in Path(f"/proc/{pid}/task").glob("*"):
        try:
            children = (task / "children").read_text().split()
        except OSError:
            continue
        for child in map(int, children):
            found += [child, *descendants(child)]
    return found


def free_port() -> int:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port: int = free.getsockname()[1]
        return port
