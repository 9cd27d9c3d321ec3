from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator, Mapping
from importlib import import_module
from pathlib import Path
from typing import Any

import pytest

from agent.kube.api import ApiClient
from tests.agent.fake_cluster import FakeCluster
from tests.agent.fork_server import ROOT, Fork, ForkServer
from tests.agent.patience import PATIENT, SECONDS, wait_for

Agent = subprocess.Popen[bytes] | Fork


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[FakeCluster]:
    directory = tmp_path / "serviceaccount"
    directory.mkdir()
    fake = FakeCluster(directory)
    yield fake
    fake.close()


class Agents:
    """Real `dlr run` processes, with their output in files."""

    def __init__(self, cluster: FakeCluster, server: ForkServer, directory: Path) -> None:
        self._cluster = cluster
        self._server = server
        self.directory = directory
        self._running: list[Agent] = []

    def script(self, text: str) -> str:
        path = self.directory / "script.py"
        path.write_text(text)
        return str(path)

    def start(
        self,
        index: int,
        *arguments: str,
        incarnation: int = 1,
        module: str = "agent.launch",
        warm: bool = False,
        forked: bool = True,
        constants: Mapping[str, Any] | None = None,
        **environ: str,
    ) -> Agent:
        """Start one.

        Args:
            warm: its training processes are forks. Most of these scripts import nothing.
            forked: from a process that has imported torch; else an interpreter of its own.
            constants: of an agent's modules, by their dotted names, beside the `PATIENT` ones.
        """
        cold = ["--no-warm-start"] if module == "agent.launch" and not warm else []
        env = {
            "PATH": os.environ["PATH"],
            "PYTHONPATH": os.pathsep.join([str(ROOT), str(self.directory)]),
            "OMP_NUM_THREADS": "1",
            "OUT": str(self.directory),
            **self._cluster.environ(index, incarnation),
            **environ,
        }
        argv = [*cold, *arguments]
        constants = {**PATIENT, **(constants or {})}
        with (self.directory / f"agent-{index}-{incarnation}.log").open("ab") as output:
            process: Agent
            if forked:
                process = self._server.start(module, argv, env, self.directory, output.fileno(), constants)
            else:
                process = subprocess.Popen(
                    [sys.executable, "-m", "tests.agent.patience", json.dumps(constants), module, *argv],
                    env=env,
                    cwd=self.directory,
                    stdout=output,
                    stderr=subprocess.STDOUT,
                    start_new_session=True,
                )
        self._running.append(process)
        return process

    def check(self, index: int, *, constants: Mapping[str, Any] | None = None) -> Agent:
        """A Pod of the NodeCheck."""
        environ = self._cluster.check_environ(index)
        return self.start(index, "check-worker", module="dlr.cli", constants=constants, **environ)

    def log(self, index: int, incarnation: int = 1) -> str:
        return (self.directory / f"agent-{index}-{incarnation}.log").read_text(errors="replace")

    def wait_log(self, index: int, text: str, *, times: int = 1) -> None:
        wait_for(lambda: self.log(index).count(text) >= times, lambda: f"{text!r} in: {self.log(index)}")

    def wait_file(self, name: str) -> None:
        wait_for((self.directory / name).exists, f"the file {name}")

    def close(self) -> None:
        for process in self._running:
            if process.poll() is not None:
                continue
            kill(process.pid, signal.SIGSTOP)  # it must not start another while we look
            for child in children(process.pid):
                kill(child, signal.SIGKILL)
            kill(process.pid, signal.SIGKILL)
            process.wait()


def children(pid: int) -> list[int]:
    """Processes whose parent is `pid`."""
    found = []
    for stat in Path("/proc").glob("[0-9]*/stat"):
        try:
            fields = stat.read_text().rpartition(")")[2].split()
        except OSError:
            continue
        if int(fields[1]) == pid and fields[0] != "Z":
            found.append(int(stat.parent.name))
    return found


def state(pid: int) -> str:
    """As the kernel names it (proc_pid_stat(5)); empty if there is no such process."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except OSError:
        return ""


def runs(pid: int) -> bool:
    """Whether there is such a process, and it is no zombie."""
    return state(pid) not in ("", "Z")


def training_processes(agent: int) -> list[int]:
    """An agent's children but for the parent that it has them forked from."""
    commands = {pid: command(pid) for pid in children(agent)}
    return [pid for pid, words in commands.items() if words and "warm" not in words]


def command(pid: int) -> str:
    """Its words, with a zero byte after each; empty if there is no such process."""
    try:
        return Path(f"/proc/{pid}/cmdline").read_text()
    except OSError:
        return ""


def kill(pid: int, signum: int) -> None:
    with contextlib.suppress(ProcessLookupError):
        os.kill(pid, signum)


@pytest.fixture(scope="session")
def fork_server() -> Iterator[ForkServer]:
    server = ForkServer()
    yield server
    server.close()


@pytest.fixture
def agents(cluster: FakeCluster, fork_server: ForkServer, tmp_path: Path) -> Iterator[Agents]:
    directory = tmp_path / "work"
    directory.mkdir()
    running = Agents(cluster, fork_server, directory)
    yield running
    running.close()


@pytest.fixture
def patient(monkeypatch: pytest.MonkeyPatch) -> None:
    """Time limits of this process, as agents have them."""
    for name, seconds in PATIENT.items():
        module, _, constant = name.rpartition(".")
        monkeypatch.setattr(import_module(module), constant, seconds)
    for limit in ("connect_timeout_seconds", "read_timeout_seconds"):
        monkeypatch.setitem(ApiClient.__init__.__kwdefaults__, limit, SECONDS)
