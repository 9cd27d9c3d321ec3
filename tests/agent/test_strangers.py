"""Real agents, and a stranger on their network who does not have the job's key."""

from __future__ import annotations

import contextlib
import json
import signal
import socket
import struct
import threading
from collections.abc import Iterator
from datetime import timedelta
from ipaddress import ip_address
from pathlib import Path

import pytest
from torch.distributed import PrefixStore, TCPStore  # type: ignore[attr-defined]

from tests.agent.checkpoints.test_resuming import SCRIPT, WITH_REPLICAS, Logs, replicated, start
from tests.agent.conftest import Agent, Agents, children, kill, training_processes
from tests.agent.fake_cluster import FakeCluster

pytestmark = pytest.mark.real

IDLE = 500
LISTENS = "0A"


def family_of(pid: int) -> list[int]:
    """The process and all that stem from it."""
    return [pid, *(each for child in children(pid) for each in family_of(child))]


def listening(pids: list[int]) -> dict[int, str]:
    """Ports that processes listen on, with the address of each."""
    held = set()
    for pid in pids:
        with contextlib.suppress(FileNotFoundError):  # it has ended, as one does that forks for another
            for fd in Path(f"/proc/{pid}/fd").iterdir():
                with contextlib.suppress(OSError):
                    held.add(str(fd.readlink()))
    found = {}
    for table in ("tcp", "tcp6"):
        for line in Path(f"/proc/net/{table}").read_text().splitlines()[1:]:
            fields = line.split()
            if fields[3] == LISTENS and f"socket:[{fields[9]}]" in held:
                address, port = fields[1].split(":")
                words = [struct.pack("<I", int(address[at : at + 8], 16)) for at in range(0, len(address), 8)]
                found[int(port, 16)] = str(ip_address(b"".join(words)))
    return found


def is_closed(connection: socket.socket) -> bool:
    """Return whether the other side has closed it. What it has sent is read."""
    connection.setblocking(False)
    try:
        while connection.recv(4096):
            pass
    except BlockingIOError:
        return False
    except OSError:
        return True
    return True


class Stranger:
    """Keeps idle connections to some ports open, and opens new ones for those that are closed."""

    def __init__(self, ports: list[tuple[str, int]]) -> None:
        self._ports = ports
        self._over = threading.Event()
        self.opened = dict.fromkeys(ports, 0)
        self.kept: dict[tuple[str, int], list[socket.socket]] = {port: [] for port in ports}
        self._thread = threading.Thread(target=self._work, daemon=True)

    def __enter__(self) -> Stranger:
        self._work_once()
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._over.set()
        self._thread.join()
        for connections in self.kept.values():
            for connection in connections:
                connection.close()

    def _work(self) -> None:
        while not self._over.wait(0.2):
            self._work_once()

    def _work_once(self) -> None:
        for port, connections in self.kept.items():
            for connection in [each for each in connections if is_closed(each)]:
                connections.remove(connection)
                connection.close()
            with contextlib.suppress(OSError):  # of an agent that was killed
                while len(connections) < IDLE:
                    connections.append(socket.create_connection(port, 1))
                    self.opened[port] += 1


def variable(pid: int, name: str) -> str:
    """A variable of a process's environment."""
    variables = Path(f"/proc/{pid}/environ").read_bytes().split(b"\0")
    return next(v.partition(b"=")[2].decode() for v in variables if v.startswith(name.encode() + b"="))


def redirect(host: str, port: int) -> None:
    """Write into the training processes' store where agents and processes of later rounds would be."""
    store = TCPStore(host, port, is_master=False, wait_for_workers=False, timeout=timedelta(seconds=300))
    for round_ in range(1, 5):
        for prefix in (f"dlr/round/{round_}", f"round/{round_}", "dlr/agents"):
            evil = PrefixStore(prefix, store)
            evil.set("MASTER_ADDR", "203.0.113.7")
            evil.set("MASTER_PORT", "1")
            evil.set("announcement", json.dumps({"address": "203.0.113.7", "port": 1, "prefix": "x/"}))
            evil.set("all", "{}")


@pytest.fixture
def trained(cluster: FakeCluster, agents: Agents, tmp_path: Path) -> Iterator[tuple[list[Agent], Logs]]:
    """Two agents that train, with each other's copies."""
    logs = Logs(cluster, tmp_path / "work")
    started = start(agents, cluster, 2, **WITH_REPLICAS, STEP_SECONDS="0.2")
    logs.wait_steps(1, range(2), 4)
    cluster.wait(lambda: min(replicated(cluster, index) for index in range(2)) > 0, "replicas")
    yield started, logs


def test_agents_and_their_processes_listen_on_the_address_of_their_pod_alone(
    trained: tuple[list[Agent], Logs],
) -> None:
    started, _ = trained
    for index, agent in enumerate(started):
        own = listening(family_of(agent.pid))
        assert own, "an agent listens for its peers"
        loopback = {"127.0.0.1", f"127.0.0.{index + 2}"}  # Gloo listens at what the host's name stands for
        assert set(own.values()) <= loopback | {socket.gethostbyname(socket.gethostname())}, own


@pytest.mark.parametrize("lost", [0, 1])
def test_a_lost_pod_resumes_from_its_peers_copy_whatever_a_stranger_does(
    cluster: FakeCluster, agents: Agents, trained: tuple[list[Agent], Logs], lost: int
) -> None:
    started, logs = trained
    ports = [
        (address, port) for agent in started for port, address in listening(family_of(agent.pid)).items()
    ]
    with Stranger(ports) as stranger:
        (process,) = training_processes(started[0].pid)
        redirect(variable(process, "MASTER_ADDR"), int(variable(process, "MASTER_PORT")))
        kept = min(replicated(cluster, index) for index in range(2))
        agent = started[lost]
        processes = training_processes(agent.pid)
        for pid in (agent.pid, *processes):
            kill(pid, signal.SIGKILL)
        agent.wait()
        reached = max(logs.last_step(1, rank) for rank in range(2))
        cluster.replace_worker(f"job-worker-{lost}", 2)
        agents.start(lost, SCRIPT, incarnation=2, warm=True, **WITH_REPLICAS, STEP_SECONDS="0.2")
        cluster.wait(lambda: cluster.agent(lost).get("incarnation") == 2, "the replacement")
        cluster.form([0, 1], lost=True)
        logs.wait_steps(2, range(2), reached + 2)
        assert logs.resumed(2, 0) == logs.resumed(2, 1) >= kept
        assert logs.told(2, lost)["resume"]["step"] > 0
        cluster.wait(lambda: min(replicated(cluster, index) for index in range(2)) > reached, "replicas anew")
        survivor = cluster.agent(1 - lost)
        port = survivor["address"], survivor["storePort"]
        cluster.wait(lambda: stranger.opened[port] > IDLE, "those without a proof to be closed")
