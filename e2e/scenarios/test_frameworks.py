"""Real TensorFlow and real JAX, on the CPU, in virtual environments of their own (docs/roles.md).

DLR_TENSORFLOW_PYTHON and DLR_JAX_PYTHON name the `python3` of one that has tensorflow-cpu, and of one that
has jax: `python3 -m venv V && V/bin/pip install tensorflow-cpu`.
"""

from __future__ import annotations

import os
import re
import signal
import subprocess
from collections.abc import Mapping, Sequence
from itertools import pairwise

import pytest

from e2e import jobs, plans, processes
from e2e.api import Object
from e2e.cluster import Capability, Cluster
from e2e.observation import Observation

NAME = "frameworks"
IMPORT_SECONDS = 120

pytestmark = [pytest.mark.needs(Capability.STORAGE)]


def python_with(module: str, variable: str) -> str:
    python = os.environ.get(variable)
    if not python:
        pytest.skip(f"{variable} names no python3 that has {module}")
    command = [python, "-c", f"import {module}"]
    done = subprocess.run(command, capture_output=True, check=False, timeout=IMPORT_SECONDS)
    if done.returncode != 0:
        pytest.skip(f"{python}, which {variable} names, cannot import {module}")
    return python


def framework_job(
    cluster: Cluster,
    namespace: str,
    launcher: Sequence[str],
    example: str,
    counts: Mapping[str, int],
    **variables: str,
) -> Object:
    storage = cluster.storage(namespace)
    variables = {"CHECKPOINT_DIR": storage.path, "TF_CPP_MIN_LOG_LEVEL": "1"} | variables
    manifest = jobs.scripted(
        cluster,
        NAME,
        1,
        ["dlr", "exec", *launcher, f"{cluster.examples}/{example}/train.py"],
        env=variables,
        grace_seconds=5,
        elasticPolicy=jobs.QUICK_REPORTS,
        runPolicy=jobs.KEEP_PODS,
    )
    template = manifest["spec"]["replicaSpecs"]["worker"]["template"]
    manifest["spec"]["replicaSpecs"] = {
        type_: {"replicas": count, "template": template} for type_, count in counts.items()
    }
    return manifest


class Log:
    """Output of a slot's first Pod: the steps and their times."""

    def __init__(self, cluster: Cluster, observation: Observation, pod: str) -> None:
        self._cluster, self._observation, self._pod = cluster, observation, pod

    def text(self) -> str:
        return self._cluster.log(self._observation.namespace, self._pod)

    def steps(self) -> list[tuple[int, float]]:
        found = re.findall(r"step (\d+) at ([\d.]+)", self.text())
        return [(int(step), float(time)) for step, time in found]

    def starts(self) -> list[int]:
        return [int(step) for step in re.findall(r"from step (\d+)", self.text())]

    def wait_for_steps(self, more: int, starts: int = 1) -> None:
        """Wait for this many more steps of the start of this number."""
        before = len(self.steps())

        def done() -> bool:
            return len(self.starts()) >= starts and len(self.steps()) >= before + more

        self._observation.wait_for(f"{more} more steps of start {starts}", done)


def worker_of(observation: Observation, type_: str, index: int) -> Object:
    workers = observation.workers(NAME)
    return next(w for w in workers if (w["spec"]["type"], w["spec"]["index"]) == (type_, index))


def runs_again(observation: Observation, type_: str, index: int) -> bool:
    found = worker_of(observation, type_, index)
    status = found.get("status", {})
    return bool(status.get("observedIncarnation") == 2 and status.get("phase") == "Running")


def has_log(observation: Observation, *pods: str) -> bool:
    """Whether they have all begun to run: the API server refuses to show the log of one that has not."""
    found = observation.pods()
    return all(found.get(pod, {}).get("status", {}).get("phase") == "Running" for pod in pods)


def running_at(observation: Observation, type_: str, index: int) -> float:
    life = worker_of(observation, type_, index)["status"]["history"][-1]
    return jobs.unix_time(life["runningAt"])


def test_tensorflow_trains_on_through_the_loss_of_a_worker_and_of_a_server_and_the_move_of_one(
    cluster: Cluster, observation: Observation
) -> None:
    python = python_with("tensorflow", "DLR_TENSORFLOW_PYTHON")
    counts = {"chief": 1, "ps": 2, "worker": 2}
    variables = {"STEPS": "1000000", "PAUSE": "0.02"}
    cluster.apply(
        framework_job(cluster, observation.namespace, ["--", python], "tensorflow", counts, **variables),
        observation.namespace,
    )
    chief = f"{NAME}-chief-0-1"
    log = Log(cluster, observation, chief)
    observation.wait_for("the chief's Pod", lambda: has_log(observation, chief))
    observation.wait_for("the first steps", lambda: len(log.steps()) > 20)

    before = len(log.steps())
    cluster.delete_pod(observation.namespace, f"{NAME}-worker-1-1")
    observation.wait_for("a worker again", lambda: runs_again(observation, "worker", 1))
    log.wait_for_steps(200)  # it serves some seconds after its Pod runs
    times = [time for _, time in log.steps()[before:]]
    without_worker = max(later - earlier for earlier, later in pairwise(times))
    print(f"a worker is lost: the coordinator paused {without_worker:.2f} s")

    cluster_before = observation.job(NAME)["status"]["cluster"]
    last_before = log.steps()[-1]
    cluster.delete_pod(observation.namespace, f"{NAME}-ps-1-1")
    observation.wait_for("a server again", lambda: runs_again(observation, "ps", 1))
    log.wait_for_steps(5, starts=2)
    back, first = running_at(observation, "ps", 1), next(t for s, t in log.steps() if t > last_before[1] + 1)
    print(f"a server is lost: training {first - back:.1f} s after its Pod is back, from {log.starts()[1]}")
    assert first - back <= 15.0
    assert 0 < log.starts()[1] <= log.steps()[-1][0]
    cluster_after = observation.job(NAME)["status"]["cluster"]
    assert (cluster_after["version"], cluster_after["tasks"]) == (2, cluster_before["tasks"])
    configs = re.findall(r"^TF_CONFIG (.*)$", log.text(), re.MULTILINE)
    assert len(configs) == 2 and configs[0] == configs[1]

    plan = plans.scale_plan("move", job=NAME, type_="ps", migrate=[f"{NAME}-ps-0"])
    cluster.apply(plan, observation.namespace)
    plans.wait_until_scaled(observation, "move")
    log.wait_for_steps(5, starts=3)
    steps = [time for _, time in log.steps()]
    pause = max(later - earlier for earlier, later in list(pairwise(steps))[-40:])
    print(f"a server is moved: the coordinator paused {pause:.1f} s, from {log.starts()[2]}")
    assert observation.job(NAME)["status"]["cluster"]["tasks"]["ps"] == "2,1"
    assert jobs.current_pods(observation, NAME) and f"{NAME}-chief-0-2" not in observation.pods()
    assert without_worker < 1.0  # last: where others use the cores, this one is missed first


def is_process_of(pod_uid: str, pid: int) -> bool:
    """Whether it is the command of a round, as it runs in that Pod."""
    found = processes.environment(pid)
    return found.get("DLR_POD_UID") == pod_uid and "JAX_PROCESS_ID" in found


@pytest.mark.needs(Capability.NODE_PROCESSES)
def test_jax_processes_meet_and_go_on_when_one_is_killed(cluster: Cluster, observation: Observation) -> None:
    python = python_with("jax", "DLR_JAX_PYTHON")
    launcher, variables = ["--each-round", "--", python], {"STEPS": "400", "PAUSE": "0.05"}
    manifest = framework_job(
        cluster, observation.namespace, launcher, "jax", {"worker": 2}, JAX_PLATFORMS="cpu", **variables
    )
    cluster.apply(manifest, observation.namespace)
    first, second = (f"{NAME}-worker-{index}-1" for index in (0, 1))
    observation.wait_for("two Pods", lambda: has_log(observation, first, second))
    log = Log(cluster, observation, first)
    observation.wait_for("the first steps", lambda: len(log.steps()) > 3)
    assert "process 0 of 2" in log.text()

    uid = observation.pods()[second]["metadata"]["uid"]
    (victim,) = (pid for pid in processes.all_pids() if is_process_of(uid, pid))
    os.kill(victim, signal.SIGKILL)
    killed_at = log.steps()[-1][1]
    observation.wait_for("another start", lambda: len(log.starts()) >= 2)
    log.wait_for_steps(2, starts=2)
    again = next(time for _, time in log.steps() if time > killed_at + 1)
    print(f"a process is killed: steps again {again - killed_at:.1f} s later, from {log.starts()[1]}")
    assert log.starts()[1] > 0
    assert f"{NAME}-worker-0-2" not in observation.pods(), "who was not killed keeps its Pod"
    jobs.wait_until_succeeded(observation, NAME)
