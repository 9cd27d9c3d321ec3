"""Hangs and late failures, with real agents and real processes; the test is the controller."""

from __future__ import annotations

import time
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import pytest
from pydantic import TypeAdapter

from crds.agent_report import AskedStacks
from tests.agent.conftest import Agents
from tests.agent.fake_cluster import FakeCluster
from tests.agent.patience import SECONDS

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


def hang_after(seconds: int, cluster: FakeCluster, agents: Agents, ranks: Iterable[int]) -> None:
    """Have a stall count as a hang once these ranks stand still: none may be slow on its way there."""
    for rank in ranks:
        agents.wait_file(f"begun.{rank}")
    cluster.set_policy(hangTimeoutSeconds=seconds)


def failure_of(cluster: FakeCluster, index: int) -> dict[str, Any]:
    found: dict[str, Any] = cluster.agent(index)["failure"]
    return found


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


ENDS_SLOWLY = """
import atexit, os, time, dlr
if os.path.exists(os.environ["OUT"] + "/end"):
    time.sleep(1000)
@atexit.register
def wait():
    while not os.path.exists(os.environ["OUT"] + "/end"): time.sleep(0.005)
    time.sleep(0.2)
    os._exit(1)
dlr.report(5)
time.sleep(0.5)
raise ValueError("the reason for all")
"""


PATIENT = {
    "agent.supervision.post_mortem.RAISED_GRACE_SECONDS": SECONDS,
    "agent.supervision.post_mortem.JUST_NOW_SECONDS": SECONDS,
}
"""A busy machine may take so long to end a process that has raised an exception."""


def test_process_that_fails_in_a_world_that_is_broken_already_is_told(
    cluster: FakeCluster, agents: Agents, tmp_path: Path
) -> None:
    agents.start(0, agents.script(ENDS_SLOWLY), constants=PATIENT)
    cluster.wait_state({0: "Ready"}, 0)
    cluster.form([0])
    agents.wait_log(0, "ValueError: the reason for all")
    cluster.form([0])  # the others saw its connections break, and told so
    (tmp_path / "work/end").touch()
    cluster.wait_state({0: "Running"}, 2)
    cluster.wait(lambda: cluster.agent(0).get("failure"), "the late failure")
    failure = failure_of(cluster, 0)
    assert (failure["round"], failure["rank"], failure["exitCode"], failure["step"]) == (1, 0, 1, 5)
    assert failure["message"].startswith("ValueError: the reason for all")
    assert "Failed" not in [report["state"] for _, report in cluster.reports]


EXPORTS = """
import os, time, dlr
out, rank = os.environ["OUT"], os.environ["RANK"]
dlr.report(1)
open(f"{out}/begun.{rank}", "w").close()
while rank == "0" and not os.path.exists(out + "/exported"):
    time.sleep(0.02)
"""


def test_a_rank_that_works_on_after_all_others_have_ended_hangs_for_nobody(
    cluster: FakeCluster, agents: Agents, tmp_path: Path
) -> None:
    cluster.set_policy(hangTimeoutSeconds=1000)
    script = agents.script(EXPORTS)
    for index in range(2):
        agents.start(index, script)
    cluster.wait_state({0: "Ready", 1: "Ready"}, 0)
    cluster.form([0, 1])
    cluster.wait_state({1: "Succeeded"}, 1)
    hang_after(1, cluster, agents, [0])
    time.sleep(3)  # for longer than a hang may take
    (tmp_path / "work/exported").touch()
    cluster.wait_state({0: "Succeeded"}, 1)
    assert "failure" not in cluster.agent(0)
