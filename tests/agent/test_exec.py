"""`dlr exec`: a command that is started once, whatever becomes of the worlds; and without torch."""

from __future__ import annotations

import signal
import subprocess
import sys
from pathlib import Path

from tests.agent.conftest import Agent, Agents, children, state
from tests.agent.fake_cluster import FakeCluster
from tests.agent.fork_server import ROOT
from tests.agent.test_launch import await_handler

COUNTS = (
    "echo begun >> begun; trap 'echo told >> told; exit 3' TERM; until [ -e go ]; do sleep 0.02; done; exit "
)
"""Begins, and ends when it is told to."""


def execute(agents: Agents, index: int, *words: str) -> Agent:
    return agents.start(index, "exec", *words, module="dlr.cli", forked=False)


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
    assert agent.wait(30) == 0
    assert (folder / "begun").read_text() == "begun\n"


def test_a_command_that_fails_ends_its_pod_with_its_code(cluster: FakeCluster, agents: Agents) -> None:
    assert execute(agents, 0, "--", "sh", "-c", "exit 7").wait(30) == 7
    assert execute(agents, 1, "sh", "-c", "kill -9 $$").wait(30) == 137
    assert execute(agents, 2, "no-such-program").wait(30) == 127
    assert execute(agents, 3).wait(30) == 2


def test_sigterm_is_the_commands_too(cluster: FakeCluster, agents: Agents) -> None:
    agent = execute(agents, 0, "sh", "-c", f"cd {agents.directory}; {COUNTS} 0")
    cluster.wait_state({0: "Ready"}, 0)
    agents.wait_file("begun")
    agent.send_signal(signal.SIGTERM)
    assert agent.wait(30) == 143
    assert (agents.directory / "told").exists()
    assert cluster.agent(0)["state"] == "Stopped"


def test_sigterm_ends_it_while_it_waits_for_the_cluster(cluster: FakeCluster, agents: Agents) -> None:
    cluster.stop()
    agent = execute(agents, 0, "true")
    await_handler(agent, signal.SIGTERM)
    agent.send_signal(signal.SIGTERM)
    assert agent.wait(30) == 143


def test_what_the_command_leaves_behind_is_collected_and_ends_with_it(
    cluster: FakeCluster, agents: Agents
) -> None:
    daemon = "setsid sh -c 'echo $$ > new; mv new daemon; exec sleep 300' &"
    short = "(setsid sh -c 'echo $$ > new2; mv new2 short' &)"
    until = "until [ -e go ]; do sleep 0.02; done"
    agent = execute(agents, 0, "sh", "-c", f"cd {agents.directory}; ({daemon}) ; {short}; {until}; exit 7")
    agents.wait_file("daemon")
    agents.wait_file("short")
    daemon_pid, short_pid = (int((agents.directory / name).read_text()) for name in ("daemon", "short"))
    cluster.wait(lambda: not state(short_pid), "the end of a process that nobody else collects")
    assert daemon_pid in children(agent.pid)
    (agents.directory / "go").touch()
    assert agent.wait(30) == 7
    assert state(daemon_pid) in ("", "Z")


def test_neither_it_nor_a_worker_of_dlr_map_needs_torch() -> None:
    code = (
        "import sys\n"
        "class Refusing:\n"
        "    def find_spec(self, name, path=None, target=None):\n"
        "        if name == 'torch': raise ModuleNotFoundError(name)\n"
        "sys.meta_path.insert(0, Refusing())\n"
        "import agent.main, agent.exec, dlr.tasks.worker\n"
    )
    subprocess.run([sys.executable, "-c", code], check=True, cwd=Path(ROOT), timeout=60)
