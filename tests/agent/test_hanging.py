"""Hangs and late failures, with real agents and real processes; the test is the controller."""

from __future__ import annotations

import pytest
from pydantic import TypeAdapter

from crds.agent_report import AskedStacks
from tests.agent.conftest import Agents
from tests.agent.fake_cluster import FakeCluster

pytestmark = pytest.mark.real

DEADLOCK = """
import os, sys, threading, time, dlr
rank, begun = int(os.environ["RANK"]), os.environ["OUT"] + "/begun." + os.environ["RANK"]
lock = threading.Lock()
lock.acquire()
def wait_for_the_other():
    open(begun, "w").close(); lock.acquire()
for step in range(100000):
    if step == 3 and rank == 1 and not os.path.exists(begun):
        print("waiting for the lock", file=sys.stderr)
        wait_for_the_other()
    if step == 4 and not os.path.exists(os.environ["OUT"] + "/go"):
        open(begun, "w").close(); time.sleep(1000)
    dlr.report(step)
    time.sleep(0.02)
"""


def test_where_the_processes_are_is_told_once_for_each_new_request(
    cluster: FakeCluster, agents: Agents
) -> None:
    cluster.ask_for_stacks("of somebody before")
    agents.start(0, "--nproc-per-node=2", agents.script(DEADLOCK))
    cluster.wait_state({0: "Ready"}, 0)
    cluster.form([0])

    def last_step() -> int:
        """What a rank told last may be step 2, where the other is quicker."""
        return max((round["lastStep"] for round in cluster.agent(0).get("rounds", ())), default=0)

    cluster.wait(lambda: last_step() == 3, "a report since the steps")
    for rank in range(2):
        agents.wait_file(f"begun.{rank}")
    assert not cluster.agent(0).get("askedStacks"), "that request was for others"

    cluster.ask_for_stacks("r" * 70)
    cluster.wait(lambda: cluster.agent(0).get("askedStacks"), "an answer")
    answer = cluster.agent(0)["askedStacks"]
    assert answer["request"] == "r" * 64
    assert TypeAdapter(AskedStacks).validate_python(answer), "it is what the CRD takes"
    frames = {stack["rank"]: stack["frames"].splitlines()[0] for stack in answer["stacks"]}
    assert "script.py:13 in <module>: " in frames[0]
    assert "script.py:7 in wait_for_the_other: " in frames[1]
    assert cluster.agent(0)["state"] == "Running", "nobody was disturbed"

    cluster.ask_for_stacks("another")
    cluster.wait(lambda: cluster.agent(0)["askedStacks"]["request"] == "another", "the next answer")
