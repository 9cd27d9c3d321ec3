"""Real agents, and a stranger on their network who does not have the job's key.

That strangers who only connect are bounded in number is in connection/test_handshake.py.
"""

from __future__ import annotations

import contextlib
import json
import signal
import socket
import struct
from datetime import timedelta
from ipaddress import ip_address
from pathlib import Path
from typing import Any

import pytest
from torch.distributed import PrefixStore, TCPStore  # type: ignore[attr-defined]

from tests.agent.conftest import Agent, Agents, children, kill, training_processes
from tests.agent.fake_cluster import FakeCluster
from tests.agent.patience import wait_for

pytestmark = pytest.mark.real

SCRIPT = str(Path(__file__).with_name("keeping.py"))
ENVIRON = {
    "DLR_MEMORY_CHECKPOINT_BYTES": str(4 << 20),
    "DLR_MEMORY_CHECKPOINT_REPLICAS": "1",
    "STEP_SECONDS": "0.2",
}
LISTENS = "0A"


class Logs:
    """What the processes of `keeping.py` wrote."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory

    def told(self, round_: int, rank: int) -> dict[str, Any]:
        """What the agent told a process."""
        content: dict[str, Any] = json.loads(self._lines(round_, rank)[0])
        return content

    def resumed(self, round_: int, rank: int) -> int:
        return int(self._lines(round_, rank)[1].removeprefix("resumed "))

    def last_step(self, round_: int, rank: int) -> int:
        steps = [line for line in self._lines(round_, rank) if line.startswith("step ")]
        return int(steps[-1].split()[1]) if steps else -1

    def wait_steps(self, round_: int, ranks: range, step: int) -> None:
        wait_for(
            lambda: all(self.last_step(round_, rank) >= step for rank in ranks),
            f"step {step} in round {round_}",
        )

    def _lines(self, round_: int, rank: int) -> list[str]:
        try:
            return (self.directory / f"{round_}.{rank}").read_text().splitlines() or ["{}"]
        except FileNotFoundError:
            return ["{}"]


def family_of(pid: int) -> list[int]:
    """The process and all that stem from it."""
    return [pid, *(each for child in children(pid) for each in family_of(child))]


def listening(pids: list[int]) -> set[str]:
    """Addresses that processes listen on."""
    held = set()
    for pid in pids:
        with contextlib.suppress(FileNotFoundError):  # it has ended, as one does that forks for another
            for fd in Path(f"/proc/{pid}/fd").iterdir():
                with contextlib.suppress(OSError):
                    held.add(str(fd.readlink()))
    found = set()
    for table in ("tcp", "tcp6"):
        for line in Path(f"/proc/net/{table}").read_text().splitlines()[1:]:
            fields = line.split()
            if fields[3] == LISTENS and f"socket:[{fields[9]}]" in held:
                address = fields[1].partition(":")[0]
                words = [struct.pack("<I", int(address[at : at + 8], 16)) for at in range(0, len(address), 8)]
                found.add(str(ip_address(b"".join(words))))
    return found


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


def replicated(cluster: FakeCluster) -> int:
    """The newest step of both agents' processes that their peers have, as they have reported."""
    return min(int((cluster.agent(i).get("memory") or {}).get("replicatedStep") or 0) for i in range(2))


def assert_on_own_address(agents: list[Agent]) -> None:
    """Assert that agents and their processes listen on the address of their Pod alone."""
    host = socket.gethostbyname(socket.gethostname())  # Gloo listens at what the host's name stands for
    for index, agent in enumerate(agents):
        own = listening(family_of(agent.pid))
        assert own <= {"127.0.0.1", f"127.0.0.{index + 2}", host} and own, own


def test_a_lost_pod_resumes_from_its_peers_copy_whatever_a_stranger_does(
    cluster: FakeCluster, agents: Agents
) -> None:
    logs = Logs(agents.directory)
    started = [agents.start(index, SCRIPT, warm=True, **ENVIRON) for index in range(2)]
    cluster.wait_state({0: "Ready", 1: "Ready"}, 0)
    cluster.form([0, 1])
    logs.wait_steps(1, range(2), 4)
    cluster.wait(lambda: replicated(cluster) > 0, "replicas")
    assert_on_own_address(started)
    (process,) = training_processes(started[0].pid)
    redirect(variable(process, "MASTER_ADDR"), int(variable(process, "MASTER_PORT")))
    kept, slots = replicated(cluster), logs.told(1, 0)["slots"]
    assert all("memfd:dlr-slot" in str(Path(path).readlink()) for path in slots)
    for pid in (started[0].pid, process):
        kill(pid, signal.SIGKILL)
    started[0].wait()
    wait_for(lambda: not any(Path(path).exists() for path in slots), "the end of its slots")
    reached = max(logs.last_step(1, rank) for rank in range(2))
    cluster.replace_worker("job-worker-0", 2)
    agents.start(0, SCRIPT, incarnation=2, warm=True, **ENVIRON)
    cluster.wait(lambda: cluster.agent(0).get("incarnation") == 2, "the replacement")
    cluster.form([0, 1], lost=True)
    logs.wait_steps(2, range(2), reached + 2)
    assert logs.resumed(2, 0) == logs.resumed(2, 1) >= kept
    assert logs.told(2, 0)["resume"]["step"] > 0
    cluster.wait(lambda: replicated(cluster) > reached, "replicas again")
