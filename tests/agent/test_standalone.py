"""`dlr run --standalone`: the agent without a cluster."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agent import standalone
from agent.environment import Environment
from agent.facts.world import AgentVerb, Member, WorldView, next_action
from agent.flags import Flags
from agent.standalone.cluster import LocalCluster, next_world
from controller.errors import SilentWatch
from crds import names
from crds.agent_report import AgentState

ROOT = Path(__file__).parents[2]
JSON = dict[str, Any]

SCRIPT = """
import os, sys, time
import torch, torch.distributed as dist
import dlr
from dlr.checkpoint import Checkpointer

dist.init_process_group("gloo")
rank = dist.get_rank()
weight = torch.zeros(4)
checkpointer = Checkpointer(os.environ["OUT"] + "/storage", {"weight": weight}, every=1, persist_every=None)
first = (checkpointer.load() or 0) + 1
if rank == 0:
    print(f"begins at {first} with {weight[0]:.0f}", flush=True)
for step in range(first, 31):
    dist.all_reduce(torch.ones(1))
    weight += 1
    if checkpointer.step(step):
        sys.exit()
    if step == 20 and rank == 1 and first == 1:
        raise ValueError('no luck')
if rank == 0:
    print(f"ends with {weight[0]:.0f}", flush=True)
"""


@pytest.mark.real
def test_goes_on_from_memory_after_a_failure_and_names_the_rank(tmp_path: Path) -> None:
    done = run_script(tmp_path, SCRIPT, "--nproc-per-node=2", "--memory-checkpoint=64Mi")
    assert done.returncode == 0, done.stderr
    begun, resumed, ended = done.stdout.splitlines()
    assert (begun, ended) == ("begins at 1 with 0", "ends with 30")
    # Rank 0 may be ended before its copy of step 20 is complete.
    assert resumed in ("begins at 21 with 20", "begins at 20 with 19")
    assert "training process failed: rank=1 exit_code=1 message=ValueError: no luck" in done.stderr
    assert f"resumes from memory, step={resumed.split()[-1]}" in done.stderr


FUNCTION = """
import os, sys
assert sys.argv[1:] == ["3"]
print(f"rank {os.environ['RANK']}\\n", end="", flush=True)
"""


@pytest.mark.real
def test_the_installed_command_runs_a_path_in_processes_of_multiprocessing(tmp_path: Path) -> None:
    """These import the file of the command again, which must not start another agent."""
    done = run_script(tmp_path, FUNCTION, "--run-path", "--nproc-per-node=2", command=[str(ROOT / "bin/dlr")])
    assert done.returncode == 0, done.stderr
    assert sorted(done.stdout.splitlines()) == ["rank 0", "rank 1"]
    assert done.stderr.count("joining round=") == 1


LEAVES_ONE_BEHIND = """
import subprocess
subprocess.Popen(["sleep", "3000"], start_new_session=True)
"""


@pytest.mark.real
def test_a_pipe_behind_the_command_ends_though_the_script_leaves_a_process_that_holds_it(
    tmp_path: Path,
) -> None:
    """`dlr run … | tee log`: tee ends when nobody can write to it any more."""
    piped = ["-c", f'"$@" | tee {tmp_path}/log', "sh", sys.executable, "-m", "dlr.cli"]
    done = run_script(tmp_path, LEAVES_ONE_BEHIND, program="sh", command=piped)
    assert done.returncode == 0, done.stderr


def run_script(
    folder: Path,
    text: str,
    *flags: str,
    program: str = sys.executable,
    command: Sequence[str] = ("-m", "dlr.cli"),
) -> subprocess.CompletedProcess[str]:
    """Run a script with the argument 3."""
    script = folder / "train.py"
    script.write_text(text)
    env = {name: value for name, value in os.environ.items() if not name.startswith(("DLR_", "PET_"))}
    return subprocess.run(
        [program, *command, "run", "--standalone", *flags, str(script), "3"],
        env=env | {"PYTHONPATH": str(ROOT), "OUT": str(folder), "OMP_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
        timeout=600,
        check=False,
    )


@pytest.mark.parametrize(
    ("flags", "environ", "says"),
    [
        ([], {names.ENV_JOB_NAME: "digits"}, "^--standalone .* this is a worker of digits: drop it"),
        (
            [],
            {names.ENV_JOB_NAME: "digits", "PET_STANDALONE": "1"},
            "^PET_STANDALONE=1 is for a machine alone",
        ),
        (["--nnodes=2:4"], {}, "--standalone is for one machine, and --nnodes is 2:4"),
        (["--nnodes=2"], {"PET_STANDALONE": "yes"}, "^PET_STANDALONE=yes .* and --nnodes is 2"),
    ],
)
def test_what_cannot_be_meant_is_one_sentence(flags: list[str], environ: dict[str, str], says: str) -> None:
    with pytest.raises(ValueError, match=says):
        standalone.check(flags[0].partition("=")[2] if flags else "1:1", environ)


def test_environment_is_a_workers_and_stays_the_same_when_started_anew() -> None:
    environ: dict[str, str] = {}
    standalone.prepare(Flags.read(["--standalone", "--memory-checkpoint", "1Ki", "train.py"], {}), environ)
    before = dict(environ)
    standalone.prepare(Flags.read(["--standalone", "--memory-checkpoint", "1Ki", "train.py"], {}), environ)
    assert environ == before
    me = Environment.read(environ)
    assert (me.worker_index, me.incarnation, me.pod_ip, me.memory_bytes) == (0, 1, "127.0.0.1", 1024)


def report(state: AgentState, observed_round: int, **more: Any) -> JSON:
    facts = {"localWorldSize": 2, "address": "127.0.0.1", "storePort": 1234}
    return {"state": state.value, "observedRound": observed_round, **facts, **more}


STATES = st.sampled_from([AgentState.READY, AgentState.FAILED, AgentState.RUNNING, AgentState.SUCCEEDED])


@given(states=st.lists(STATES, max_size=20))
def test_the_agent_always_has_something_to_do_or_is_done(states: list[AgentState]) -> None:
    """Whatever it reports: it is asked to start the next round, trains, or the job is over."""
    world: JSON = {}
    observed = 0
    rounds = []
    for state in [AgentState.READY, *states]:
        world = next_world(world, report(state, observed)) or world
        view = WorldView.parse({"spec": world})
        action = next_action(view.world, Member(0, 1), observed, state, view.phase)
        if action.verb is AgentVerb.EXIT:
            assert AgentState.SUCCEEDED in states
            return
        if action.verb is AgentVerb.START:
            assert action.round is not None
            rounds.append(action.round)
            observed = action.round
        else:
            assert state is AgentState.RUNNING
    assert rounds == sorted(set(rounds)), "a round is never given twice"


def test_only_failures_break_a_world() -> None:
    world = next_world({}, report(AgentState.READY, 0)) or {}
    assert world["brokenRound"] == 0
    world = next_world(world, report(AgentState.FAILED, 1, failure={"cause": "Hang"})) or {}
    assert (world["round"], world["brokenRound"]) == (2, 1)
    assert world["failures"] == 1
    assert next_world(world, report(AgentState.FAILED, 1)) is None, "it has been acted on"


@pytest.fixture
def cluster() -> LocalCluster:
    environ: dict[str, str] = {}
    standalone.prepare(Flags.read([], {}), environ)
    return LocalCluster(Environment.read(environ), 30.0)


@pytest.mark.real
def test_a_watch_shows_each_change_and_ends_when_nothing_comes(cluster: LocalCluster) -> None:
    version = cluster.get("/x/elasticworlds")["metadata"]["resourceVersion"]
    events = cluster.watch("/x/elasticworlds", {"resourceVersion": version}, idle_timeout_seconds=0.05)
    with pytest.raises(SilentWatch):
        next(events)
    events = cluster.watch("/x/elasticworlds", {"resourceVersion": version}, idle_timeout_seconds=300)
    threading.Timer(0.05, cluster.ask_for_stacks).start()
    shown = next(events)["object"]
    assert shown["spec"]["asked"]["stacks"]
    cluster.merge_patch("/x/status", {"status": {"agent": report(AgentState.READY, 0)}})
    assert next(events)["object"]["spec"]["round"] == 1
