"""Hangs and late failures, with real agents and real processes; the test is the controller."""

from __future__ import annotations

import time
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import pytest
from pydantic import TypeAdapter

from crds.agent_report import AskedStacks
from crds.failure_texts import ASKED
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


def test_hang_is_told_with_the_rank_that_is_behind_and_its_stack_and_training_starts_again(
    cluster: FakeCluster, agents: Agents, tmp_path: Path
) -> None:
    cluster.set_policy(hangTimeoutSeconds=1000)
    agent = agents.start(0, "--nproc-per-node=2", agents.script(DEADLOCK))
    cluster.wait_state({0: "Ready"}, 0)
    cluster.form([0])
    hang_after(2, cluster, agents, range(2))
    cluster.wait_state({0: "Failed"}, 1)
    failure = failure_of(cluster, 0)
    assert (failure["cause"], failure["rank"], failure["step"]) == ("Hang", 1, 2)
    assert "exitCode" not in failure
    first_line = failure["message"].splitlines()[0]
    assert first_line.startswith("no step for ")
    assert " s): rank 1, after step 2, is at " in first_line
    assert "script.py:7 in wait_for_the_other: " in first_line and first_line.endswith("lock.acquire()")
    assert [(s["rank"], s["step"], s["inCollective"]) for s in failure["stacks"]] == [
        (1, 2, False),
        (0, 3, False),
    ]
    assert "script.py:13 in <module>: " in failure["stacks"][1]["frames"]
    assert "waiting for the lock" in failure["logTail"]
    files = Path(failure["message"].rpartition("are in ")[2].removesuffix(" of this Pod."))
    folder = files.parent.parent
    assert folder.name == "attempt_1"
    assert sorted(path.parent.name for path in folder.glob("*/stacks.txt")) == ["0", "1"]

    (tmp_path / "work/go").touch()
    cluster.set_policy(hangTimeoutSeconds=1000)
    cluster.form([0])
    cluster.wait_step(0, 5)
    assert cluster.agent(0)["state"] == "Running"
    assert "File" in (folder / "1" / "stacks.txt").read_text()
    cluster.publish(phase="Succeeded")
    assert agent.wait(300) == 0


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


TELLS_NOTHING = """
import os, time, torch
begun, rank = os.environ["OUT"] + "/begun." + os.environ["RANK"], int(os.environ["RANK"])
weight = torch.nn.Parameter(torch.ones(1))
weight.grad = torch.ones(1)
optimizer = torch.optim.SGD([weight], lr=0.01)
def wait_for_the_other():
    open(begun, "w").close(); time.sleep(1000)
for step in range(1, 6):
    if step == 4 and rank == 1:
        wait_for_the_other()
    optimizer.step()
    time.sleep(0.02)
open(begun, "w").close(); time.sleep(1000)
"""


def test_a_script_that_tells_nothing_is_judged_by_the_steps_of_its_optimizer(
    cluster: FakeCluster, agents: Agents
) -> None:
    cluster.set_policy(hangTimeoutSeconds=1000)
    agents.start(0, "--nproc-per-node=2", agents.script(TELLS_NOTHING), warm=True)
    cluster.wait_state({0: "Ready"}, 0)
    cluster.form([0])
    hang_after(2, cluster, agents, range(2))
    cluster.wait_state({0: "Failed"}, 1)
    failure = failure_of(cluster, 0)
    assert (failure["cause"], failure["rank"], failure["step"]) == ("Hang", 1, 3)
    assert "script.py:8 in wait_for_the_other: " in failure["message"].splitlines()[0]
    assert [(stack["rank"], stack["step"]) for stack in failure["stacks"]] == [(1, 3), (0, 5)]
    (round_,) = cluster.agent(0)["rounds"]
    assert (round_["firstStep"], round_["lastStep"], round_["counted"]) == (1, 5, True)


def ask_where_it_hangs(cluster: FakeCluster, agents: Agents, script: str, tmp_path: Path) -> None:
    """Of a script that says when it has begun; until its agent has answered."""
    agents.start(0, script)
    cluster.wait_state({0: "Ready"}, 0)
    cluster.form([0])
    cluster.wait(lambda: (tmp_path / "work/begun").exists(), "the process to begin")
    cluster.reform(brokenRound=1, hangSince="2026-01-01T12:00:00Z")
    cluster.wait(lambda: "failure" in cluster.agent(0), "the agent to answer")


def test_who_is_asked_where_it_hangs_says_so_though_it_never_told_a_step(
    cluster: FakeCluster, agents: Agents, tmp_path: Path
) -> None:
    script = agents.script(
        "import os, time, dlr\n"
        "with dlr.busy(0.1): pass\n"
        "open(os.environ['OUT'] + '/begun', 'w').close(); time.sleep(1000)\n"
    )
    ask_where_it_hangs(cluster, agents, script, tmp_path)
    assert cluster.agent(0)["state"] == "Running", "its end would move its peers before they have answered"
    cluster.reform(hangSince=None)
    cluster.wait_state({0: "Ready"}, 1)
    failure = failure_of(cluster, 0)
    assert (failure["cause"], failure["round"], failure["rank"]) == ("Hang", 1, 0)
    assert "rank 0, before its first step, is at " in failure["message"]
    assert "time.sleep(1000)" in failure["message"]


def test_who_is_asked_where_it_hangs_says_so_though_it_is_well(
    cluster: FakeCluster, agents: Agents, tmp_path: Path
) -> None:
    script = agents.script(
        "import os, time, dlr\n"
        "dlr.report(3)\n"
        "with dlr.busy(1000):\n"
        "    open(os.environ['OUT'] + '/begun', 'w').close(); time.sleep(1000)\n"
    )
    ask_where_it_hangs(cluster, agents, script, tmp_path)
    failure = failure_of(cluster, 0)
    assert (failure["round"], failure["rank"], failure["step"]) == (1, 0, 3)
    assert failure["message"].startswith("does not hang: its last sign of life is ")
    assert " s old: rank 0, after step 3, " in failure["message"]
    assert failure.get("cause") is None and ASKED in failure["message"], "no hang, to whoever reads it"
    assert "time.sleep(1000)" in failure["stacks"][0]["frames"]
    assert cluster.agent(0)["state"] == "Running", "its end would move its peers before they have answered"
    cluster.reform(hangSince=None)
    cluster.wait_state({0: "Ready"}, 1)


LEAVES = """
import os, sys, time, dlr
rank, file = int(os.environ["RANK"]), os.environ["OUT"] + "/pid"
dlr.report(7 + rank)
if rank == 1:
    with open(file + ".new", "w") as out: out.write(str(os.getpid()))
    os.rename(file + ".new", file)
    sys.exit(0)
def lives():
    try: return open(f"/proc/{open(file).read()}/stat").read().rpartition(")")[2].split()[0] != "Z"
    except ProcessLookupError: return False
    except FileNotFoundError: return not os.path.exists(file)
while lives(): time.sleep(0.005)
raise RuntimeError("[gloo/transport/tcp/pair.cc:547] Connection closed by peer [127.0.0.1]:7")
"""


def test_rank_that_finished_early_is_told_instead_of_its_neighbour_that_lost_it(
    cluster: FakeCluster, agents: Agents
) -> None:
    agents.start(0, "--nproc-per-node=2", agents.script(LEAVES))
    cluster.wait_state({0: "Ready"}, 0)
    cluster.form([0])
    cluster.wait_state({0: "Failed"}, 1)
    failure = failure_of(cluster, 0)
    assert failure["message"].startswith("rank 1 finished early, at step 8; the others cannot go on")
    assert (failure["rank"], failure["exitCode"]) == (1, 0)


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


def test_exception_that_nobody_caught_is_told_though_the_process_does_not_come_to_its_end(
    cluster: FakeCluster, agents: Agents
) -> None:
    script = agents.script(
        "import os, time\n"
        "from torch.distributed.elastic.multiprocessing.errors import record\n"
        "@record\n"
        "def main():\n"
        "    raise ValueError('the reason for all')\n"
        "try: main()\n"
        "finally:\n"
        "    open(os.environ['OUT'] + '/raised', 'w').close()\n"
        "    time.sleep(1000)\n"  # as where a library waits for its threads
    )
    agents.start(0, script)
    cluster.wait_state({0: "Ready"}, 0)
    cluster.form([0])
    agents.wait_file("raised")
    cluster.form([0])
    cluster.wait(lambda: cluster.agent(0).get("failure"), "the late failure")
    failure = failure_of(cluster, 0)
    assert (failure["round"], failure["rank"], failure["exitCode"]) == (1, 0, 1)
    assert failure["message"].startswith("ValueError: the reason for all")


def test_of_two_processes_the_one_is_told_that_did_not_die_of_the_other(
    cluster: FakeCluster, agents: Agents
) -> None:
    script = agents.script(
        "import atexit, os, time\n"
        "raised = os.environ['OUT'] + '/raised'\n"
        "if os.environ['RANK'] == '0':\n"
        "    while not os.path.exists(raised): time.sleep(0.005)\n"
        "    raise RuntimeError('[gloo] Connection closed by peer [127.0.0.1]:4')\n"
        "@atexit.register\n"
        "def end_slowly():\n"
        "    open(raised, 'w').close()\n"
        "    time.sleep(0.2)\n"
        "    os._exit(1)\n"
        "raise ValueError('the reason for all')\n"
    )
    agents.start(0, "--nproc-per-node=2", script, constants=PATIENT)
    cluster.wait_state({0: "Ready"}, 0)
    cluster.form([0])
    cluster.wait_state({0: "Failed"}, 1)
    cluster.wait(lambda: failure_of(cluster, 0)["rank"] == 1, "the reason")
    assert failure_of(cluster, 0)["message"].startswith("ValueError: the reason for all")
    assert cluster.agent(0)["state"] == "Failed"


@pytest.mark.parametrize(
    ("exit_code", "says"), [(3, "the process exited with code 3"), (0, "rank 1 finished early")]
)
def test_an_end_without_a_word_is_told_though_its_consequence_comes_first(
    cluster: FakeCluster, agents: Agents, exit_code: int, says: str
) -> None:
    """On a busy machine the interpreter takes longer to shut down than a peer takes to fail."""
    script = agents.script(
        "import atexit, os, sys, time\n"
        "ends = os.environ['OUT'] + '/ends'\n"
        "if os.environ['RANK'] == '0':\n"
        "    while not os.path.exists(ends): time.sleep(0.005)\n"
        "    raise RuntimeError('[gloo] Connection closed by peer [127.0.0.1]:4')\n"
        "@atexit.register\n"
        "def end_slowly():\n"
        "    open(ends, 'w').close()\n"
        "    time.sleep(1)\n"
        f"sys.exit({exit_code})\n"
    )
    agents.start(0, "--nproc-per-node=2", script, warm=True, constants=PATIENT)
    cluster.wait_state({0: "Ready"}, 0)
    cluster.form([0])
    cluster.wait_state({0: "Failed"}, 1)
    cluster.wait(lambda: failure_of(cluster, 0)["rank"] == 1, "the cause")
    failure = failure_of(cluster, 0)
    assert failure["exitCode"] == exit_code and failure["message"].startswith(says)


def test_crash_leaves_the_place_where_python_was(cluster: FakeCluster, agents: Agents) -> None:
    agents.start(0, agents.script("import ctypes\ndef crash():\n    ctypes.string_at(0)\ncrash()\n"))
    cluster.wait_state({0: "Ready"}, 0)
    cluster.form([0])
    cluster.wait_state({0: "Failed"}, 1)
    failure = failure_of(cluster, 0)
    assert failure["signal"] == "SIGSEGV"
    assert failure["message"].startswith(
        "the process was killed by SIGSEGV\nFatal Python error: Segmentation fault"
    )
    assert "line 3 in crash" in failure["message"]


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
