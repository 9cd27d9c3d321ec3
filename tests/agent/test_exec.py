"""`dlr exec`: a command that is started once, whatever becomes of the worlds; and without torch."""

from __future__ import annotations

import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from agent.exec import main
from tests.agent.conftest import Agent, Agents
from tests.agent.fake_cluster import FakeCluster
from tests.agent.fork_server import ROOT

pytestmark = pytest.mark.real

COUNTS = (
    "trap 'echo told >> told; exit 3' TERM; echo begun >> begun; until [ -e go ]; do sleep 0.02; done; exit "
)
"""Begins, and ends when it is told to."""


def execute(agents: Agents, index: int, *words: str, **more: Any) -> Agent:
    return agents.start(index, "exec", *words, module="dlr.cli", forked=False, **more)


def test_its_command_goes_on_from_world_to_world_and_ends_with_the_job(
    cluster: FakeCluster, agents: Agents
) -> None:
    folder = agents.directory
    agent = execute(agents, 0, "sh", "-c", f'test -S "$DLR_SHARDS_SOCKET"; cd {folder}; {COUNTS} 0')
    cluster.wait_state({0: "Ready"}, 0)
    cluster.form([0])
    cluster.wait_state({0: "Running"}, 1)
    cluster.reform()
    cluster.wait_state({0: "Ready"}, 1)
    cluster.form([0])
    cluster.wait_state({0: "Running"}, 2)
    (folder / "go").touch()
    cluster.wait_state({0: "Succeeded"}, 2)
    cluster.form([0])
    cluster.wait_state({0: "Succeeded"}, 3)
    cluster.publish(phase="Succeeded")
    assert agent.wait(300) == 0
    assert (folder / "begun").read_text() == "begun\n"


def test_a_command_that_fails_ends_its_pod_with_its_code(cluster: FakeCluster, agents: Agents) -> None:
    assert execute(agents, 0, "--", "sh", "-c", "exit 7").wait(300) == 7
    assert execute(agents, 1, "sh", "-c", "kill -9 $$").wait(300) == 137
    assert execute(agents, 2, "no-such-program").wait(300) == 127
    assert execute(agents, 3).wait(300) == 2


def test_what_ends_the_agent_is_the_commands_sigterm(cluster: FakeCluster, agents: Agents) -> None:
    """An image may name another signal than SIGTERM (STOPSIGNAL)."""
    before = signal.signal(signal.SIGQUIT, signal.SIG_DFL)  # a shell's background ignores it
    agent = execute(agents, 0, "sh", "-c", f"cd {agents.directory}; {COUNTS} 0")
    signal.signal(signal.SIGQUIT, before)
    cluster.wait_state({0: "Ready"}, 0)
    agents.wait_file("begun")
    agent.send_signal(signal.SIGQUIT)
    assert agent.wait(300) == 131
    assert (agents.directory / "told").exists()
    assert cluster.agent(0)["state"] == "Stopped"


CHIEF = "until [ -e fail-$DLR_CLUSTER_VERSION ]; do sleep 0.02; done; exit 5"


def publish_version(cluster: FakeCluster, version: int) -> None:
    tasks = {"chief": "0", "ps": "0"}
    cluster.publish(phase="Running", cluster={"version": version, "tasks": tasks, "incarnations": [1]})


def test_no_failure_is_a_commands_own_by_a_view_that_is_older_than_its_explanation(
    cluster: FakeCluster, agents: Agents
) -> None:
    """As of an agent that was stopped longer than it waits for explanations."""
    folder, roles = agents.directory, {"DLR_REPLICA_TYPE": "chief", "DLR_CLUSTER_VERSION": "1"}
    at_once = {"agent.exec.PATIENCE_SECONDS": 0.0}
    agent = execute(agents, 0, "sh", "-c", f"cd {folder}; {CHIEF}", constants=at_once, **roles)
    cluster.wait_state({0: "Ready"}, 0)
    publish_version(cluster, 1)
    cluster.wait_state({0: "Running"}, 1)
    cluster.delivers.clear()
    publish_version(cluster, 2)
    before = cluster.lists
    (folder / "fail-1").touch()
    cluster.wait(lambda: cluster.lists > before, "another look")
    cluster.delivers.set()
    cluster.wait_state({0: "Running"}, 2)
    (folder / "fail-2").touch()
    assert agent.wait(300) == 5, "nothing explains that one"


def test_rounds_are_refused_beside_parameter_servers(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("DLR_CLUSTER_VERSION", "1")
    assert main(["--each-round", "--", "true"]) == 2
    said = capsys.readouterr().err
    assert said.startswith("dlr exec: --each-round needs a job that forms a world, and one with parameter")


def test_neither_it_nor_a_worker_of_dlr_map_needs_torch() -> None:
    code = (
        "import sys\n"
        "class Refusing:\n"
        "    def find_spec(self, name, path=None, target=None):\n"
        "        if name == 'torch': raise ModuleNotFoundError(name)\n"
        "sys.meta_path.insert(0, Refusing())\n"
        "import agent.main, agent.exec, dlr.tasks.worker\n"
    )
    subprocess.run([sys.executable, "-c", code], check=True, cwd=Path(ROOT), timeout=300)
