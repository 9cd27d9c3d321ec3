"""How a Pod ended is judged by its containers and its agent's word, and not by its phase."""

from __future__ import annotations

from typing import Any

import pytest

from e2e import jobs
from e2e.api import Object
from e2e.cluster import Cluster
from e2e.observation import Observation

ENDING_SECONDS = 300.0
PROXY: Object = {"name": "proxy", "command": ["/bin/sh", "-c", "sleep 3600"]}


def test_a_launcher_that_is_killed_before_its_first_report_has_not_succeeded(
    cluster: Cluster, observation: Observation
) -> None:
    """Behind a wrapper that the controller cannot read; beside it, a job that starts no launcher."""
    dies = 'export PYTHONPATH=$(mktemp -d); echo "import os; os.kill(os.getpid(), 9)" >$PYTHONPATH/torch.py'
    killed = jobs.shell(cluster, f"{dies}; timeout 3600 torchrun train.py | cat", name="killed")
    killed["spec"]["replicaSpecs"]["worker"]["restartCount"] = 0
    plain = jobs.shell(cluster, "timeout 3600 echo torchrun | cat", name="plain")
    job = end_of(cluster, observation, killed)
    assert job["phase"] == "Failed", observation.describe()
    assert "torchrun has not reported once" in job["lastFailure"]["message"], observation.describe()
    assert end_of(cluster, observation, plain)["phase"] == "Succeeded", observation.describe()


@pytest.mark.named
def test_a_crash_loop_is_counted_and_ends_the_job(cluster: Cluster, observation: Observation) -> None:
    manifest = jobs.shell(cluster, "echo no such option >&2; exit 2", name="loops")
    worker = manifest["spec"]["replicaSpecs"]["worker"]
    worker["restartCount"] = 1
    worker["template"]["spec"]["restartPolicy"] = "OnFailure"
    job = end_of(cluster, observation, manifest)
    assert job["phase"] == "Failed", observation.describe()
    assert job["lastFailure"]["message"] == "exit code 2: no such option", observation.describe()
    (looped,) = observation.workers("loops")
    assert looped["spec"]["incarnation"] == 1, "its kubelet started it again, in one Pod"


def end_of(cluster: Cluster, observation: Observation, manifest: Object) -> dict[str, Any]:
    """The job's status when it has ended."""
    name = manifest["metadata"]["name"]
    cluster.apply(manifest, observation.namespace)
    ended = ("Succeeded", "Failed")
    observation.wait_for(f"{name} to end", lambda: jobs.phase(observation, name) in ended, ENDING_SECONDS)
    status: dict[str, Any] = observation.job(name)["status"]
    return status
