"""Real agents, and a stranger on their network who does not have the job's key.

That strangers who connect are bounded in number, and reach nothing, is in connection/.
"""

from __future__ import annotations

import contextlib
import json
import socket
import struct
from datetime import timedelta
from ipaddress import ip_address
from pathlib import Path

import pytest
from torch.distributed import PrefixStore, TCPStore  # type: ignore[attr-defined]

from tests.agent.conftest import Agents, children, training_processes
from tests.agent.fake_cluster import FakeCluster

pytestmark = pytest.mark.real

LISTENS = "0A"
TRAIN = """
import time, dlr, torch, torch.distributed as dist
dist.init_process_group("gloo")
for step in range(100000):
    dist.all_reduce(torch.ones(1))
    dlr.report(step)
    time.sleep(0.02)
"""


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


def assert_on_own_address(pid: int, index: int) -> None:
    """Assert that an agent and its processes listen on the address of their Pod alone."""
    host = socket.gethostbyname(socket.gethostname())  # Gloo listens at what the host's name stands for
    own = listening(family_of(pid))
    assert own and own <= {"127.0.0.1", f"127.0.0.{index + 2}", host}, own


def test_whatever_is_written_into_the_training_processes_store_agents_meet_again(
    cluster: FakeCluster, agents: Agents
) -> None:
    script = agents.script(TRAIN)
    started = [agents.start(index, script, warm=True) for index in range(2)]
    cluster.wait_state({0: "Ready", 1: "Ready"}, 0)
    cluster.form([0, 1])
    for index, agent in enumerate(started):
        cluster.wait_step(index, 2)
        assert_on_own_address(agent.pid, index)
    (process,) = training_processes(started[0].pid)
    redirect(variable(process, "MASTER_ADDR"), int(variable(process, "MASTER_PORT")))
    cluster.form([0, 1])
    cluster.wait_state({0: "Running", 1: "Running"}, 2)
    for index in range(2):
        cluster.wait(lambda: [r for r in cluster.agent(index)["rounds"] if r["round"] == 2], "steps")  # noqa: B023
