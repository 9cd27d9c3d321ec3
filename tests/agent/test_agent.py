"""`dlr run` as a whole: real agents and real processes, with an API server of the test's own."""

from __future__ import annotations

import signal
from pathlib import Path

import pytest

from tests.agent.conftest import Agents, runs, training_processes
from tests.agent.fake_cluster import FakeCluster

pytestmark = pytest.mark.real

COUNT = """
import os, time, dlr
for step in range(int(os.environ.get("STEPS", "100000"))):
    dlr.report(step)
    time.sleep(0.02)
"""


def test_whom_another_has_replaced_stops_writing_and_trains_on_until_it_is_told_to_leave(
    cluster: FakeCluster, agents: Agents
) -> None:
    script = agents.script(
        "import dlr, time\nfor step in range(10**6):\n    dlr.report(step)\n    time.sleep(0.05)\n"
    )
    agent = agents.start(0, script)
    cluster.wait_state({0: "Ready"}, 0)
    cluster.form([0])
    cluster.wait_step(0, 3)
    (process,) = training_processes(agent.pid)
    cluster.replace_worker("job-worker-0", 2)
    cluster.wait(lambda: cluster.refused, "a refusal")
    agents.wait_log(0, "the Pod job-worker-0-2 has taken this one's place")
    assert training_processes(agent.pid) == [process]
    agent.terminate()
    assert agent.wait(300) == 143
    assert cluster.refused == ["job-worker-0"]


@pytest.mark.parametrize(
    ("command", "code", "message"),
    [
        (["-c", "import os, signal; os.kill(os.getpid(), signal.SIGSEGV)"], 128 + signal.SIGSEGV, "SIGSEGV"),
        (["--no-python", "/no/such/program"], 127, "/no/such/program"),
    ],
)
def test_max_restarts_given_ends_the_agent_with_the_process_exit_code(
    cluster: FakeCluster, agents: Agents, command: list[str], code: int, message: str
) -> None:
    if command[0] == "-c":
        command = [agents.script(command[1])]
    agent = agents.start(0, "--max-restarts=0", *command)
    cluster.wait_state({0: "Ready"}, 0)
    cluster.form([0])
    assert agent.wait(300) == code
    assert message in cluster.agent(0)["failure"]["message"]


def test_what_a_round_that_ended_well_left_behind_lives_until_the_next_round_or_the_agents_end(
    cluster: FakeCluster, agents: Agents, tmp_path: Path
) -> None:
    script = agents.script(
        "import os, subprocess\n"
        "uploader = subprocess.Popen(['sleep', '3600'], start_new_session=True)\n"
        "open(os.environ['OUT'] + '/uploader', 'a').write(f'{uploader.pid}\\n')\n"
    )
    agent = agents.start(0, script)
    cluster.wait_state({0: "Ready"}, 0)
    for round_ in (1, 2):
        cluster.form([0])
        cluster.wait_state({0: "Succeeded"}, round_)
    first, second = (int(pid) for pid in (tmp_path / "work/uploader").read_text().split())
    assert not runs(first) and runs(second)
    cluster.publish(phase="Succeeded")
    assert agent.wait(300) == 0
    assert not runs(second)


SECOND_PROCESS_CANNOT_BE_STARTED = """
import subprocess
class Popen(subprocess.Popen):
    count = 0
    def __init__(self, *args, **kwargs):
        Popen.count += kwargs.get("start_new_session", False)
        if Popen.count == 2:
            raise OSError(11, "Resource temporarily unavailable")
        super().__init__(*args, **kwargs)
subprocess.Popen = Popen
"""


def test_start_that_fails_half_way_leaves_no_process(
    cluster: FakeCluster, agents: Agents, tmp_path: Path
) -> None:
    (tmp_path / "work/sitecustomize.py").write_text(SECOND_PROCESS_CANNOT_BE_STARTED)
    agent = agents.start(0, "--nproc-per-node=2", agents.script(COUNT), forked=False)
    cluster.wait_state({0: "Ready"}, 0)
    cluster.form([0])
    cluster.wait_state({0: "Failed"}, 1)
    assert "Resource temporarily unavailable" in cluster.agent(0)["failure"]["message"]
    # One that the agent begins for itself bears the agent's own words until its exec.
    cluster.wait(lambda: not training_processes(agent.pid), "no process to be left")
    cluster.form([0])
    cluster.wait_state({0: "Running"}, 2)


def test_round_that_is_superseded_while_members_are_missing_is_abandoned_at_once(
    cluster: FakeCluster, agents: Agents
) -> None:
    agents.start(1, agents.script(COUNT), constants={"agent.rendezvous.meeting.SLICE_SECONDS": 3600.0})
    cluster.wait_state({1: "Ready"}, 0)
    # Member 2 will never come; and in the next round, rank 0 does not even listen.
    cluster.environ(2)
    cluster.workers["job-worker-2"]["status"]["agent"] = {**cluster.agent(1), "storePort": 9}
    cluster.form([1, 2])
    agents.wait_log(1, "joining round=1")
    rendezvous = cluster.job["status"]["rendezvous"]
    cluster.publish(rendezvous={**rendezvous, "round": 2, "masterPort": 9, "members": "0-1"})
    agents.wait_log(1, "joining round=2")
    cluster.form([1])
    cluster.wait_state({1: "Running"}, 3)
