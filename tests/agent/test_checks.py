"""Real agents, real probes: the API server alone is of the test's own."""

from __future__ import annotations

import signal
from pathlib import Path
from typing import Any

import pytest
from pydantic import TypeAdapter

from crds.agent_report import AgentCheck, AgentReport
from tests.agent.conftest import Agent, Agents, children, command, kill, runs, state
from tests.agent.fake_cluster import CHECK, FakeCluster
from tests.agent.patience import wait_for

pytestmark = pytest.mark.real

SCRIPT = "import dlr, time\nfor step in range(10**6):\n    dlr.report(step)\n    time.sleep(0.05)\n"
LONG_SECONDS = 600.0

STOPS_PROBES = """
import os, signal, sys
if any(word.startswith(("healthcheck.probes.", "agent.node_check.pair")) for word in sys.orig_argv):
    os.kill(os.getpid(), signal.SIGSTOP)
"""


def running(workers: list[int], round_: int, groups: list[dict[str, Any]] | None = None) -> dict[str, Any]:
    """The status of a check of these workers' nodes."""
    return {
        "phase": "Running",
        "nodes": [f"node-{index}" for index in workers],
        "workers": workers,
        "incarnations": [1 for _ in workers],
        "round": round_,
        "groups": groups or [],
    }


def group(*agents: dict[str, Any]) -> dict[str, Any]:
    return {
        "members": [f"node-{position}" for position in range(len(agents))],
        "masterAddress": agents[0]["address"],
        "masterPort": agents[0]["storePort"],
    }


def told(agent: dict[str, Any]) -> AgentCheck:
    read = TypeAdapter(AgentReport).validate_python(agent).check
    assert read is not None
    assert read.to_wire() == agent["check"]
    return read


def probes(pid: int) -> list[int]:
    """Processes of probes that the agent runs."""
    modules = "healthcheck.probes.", "agent.node_check.pair"
    return [child for child in children(pid) if any(module in command(child) for module in modules)]


@pytest.fixture
def stopping(agents: Agents) -> Path:
    """As long as this file is there, probes stop at their start, so that none ends by itself."""
    file = agents.directory / "sitecustomize.py"
    file.write_text(STOPS_PROBES)
    return file


def stopped_probe_of(agent: Agent) -> int:
    return int(wait_for(lambda: [pid for pid in probes(agent.pid) if state(pid) == "T"], "a probe")[0])


@pytest.mark.usefixtures("stopping")
def test_nobody_waits_for_a_member_whose_probe_was_killed(cluster: FakeCluster, agents: Agents) -> None:
    cluster.publish_check(phase="Pending", spec={"timeoutSeconds": 3600})
    processes = [agents.check(0), agents.check(1)]
    cluster.wait(lambda: all(cluster.check_agent(i).get("state") == "Ready" for i in (0, 1)), "both agents")
    cluster.publish_check(**running([0, 1], 1, [group(*(cluster.check_agent(i) for i in (0, 1)))]))
    kill(stopped_probe_of(processes[1]), signal.SIGKILL)
    kill(stopped_probe_of(processes[0]), signal.SIGCONT)
    cluster.wait(lambda: all(cluster.check_agent(i).get("check") for i in (0, 1)), "the test", LONG_SECONDS)
    reasons = [told(cluster.check_agent(i)).pairs[0].reason for i in (0, 1)]
    assert reasons == ["node-1 says: ended by SIGKILL", "ended by SIGKILL"]


@pytest.mark.usefixtures("stopping")
def test_the_end_of_the_check_ends_its_pods_with_all_their_probes(
    cluster: FakeCluster, agents: Agents
) -> None:
    cluster.publish_check(**running([0], 0))
    agent = agents.check(0)
    probe = stopped_probe_of(agent)
    cluster.delete_check()
    assert agent.wait(300) == 0
    assert not runs(probe)
    assert cluster.check_agent(0)["state"] == "Stopped"
    assert not cluster.check_agent(0).get("check")


@pytest.mark.usefixtures("stopping")
def test_probes_do_not_outlive_an_agent_that_is_killed(cluster: FakeCluster, agents: Agents) -> None:
    cluster.publish_check(**running([0], 0))
    agent = agents.check(0)
    probe = stopped_probe_of(agent)
    kill(probe, signal.SIGCONT)
    agent.kill()
    agent.wait()
    wait_for(lambda: not runs(probe), "the end of the probe")


@pytest.mark.usefixtures("stopping")
def test_a_new_world_ends_the_probes_before_its_processes_start(cluster: FakeCluster, agents: Agents) -> None:
    agent = agents.start(0, agents.script(SCRIPT))
    cluster.wait_state({0: "Ready"}, 0)
    cluster.publish_check(**running([0], 0))
    cluster.publish(activeCheck=CHECK)
    probe = stopped_probe_of(agent)
    cluster.form([0])
    cluster.wait_state({0: "Running"}, 1)
    assert not runs(probe)
    cluster.wait_step(0, 0)
    assert probes(agent.pid) == []
    assert not cluster.agent(0).get("check"), "a test that was broken off says nothing"
