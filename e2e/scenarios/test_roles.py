"""Parameter servers, their chief, workers and an evaluator, on stable names (docs/roles.md)."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest

from e2e import jobs, plans
from e2e.api import Object
from e2e.cluster import Capability, Cluster
from e2e.observation import Observation

NAME = "roles"
STAND_IN = Path(__file__).parent.parent / "fixtures" / "roles.py"

pytestmark = pytest.mark.needs(Capability.STORAGE, Capability.SOURCE)


def roles_job(cluster: Cluster, command: list[str], **counts: int) -> Object:
    """Return a job with so many Pods of each type, all with the same command."""
    manifest = jobs.scripted(
        cluster,
        NAME,
        counts["worker"],
        ["dlr", "exec", "--", *command],
        resources={"requests": {"cpu": "100m", "memory": "64Mi"}},
        grace_seconds=5,
        elasticPolicy=jobs.QUICK_REPORTS,
    )
    template = manifest["spec"]["replicaSpecs"]["worker"]["template"]
    manifest["spec"]["replicaSpecs"] = {
        type_: {"replicas": count, "template": template, "restartCount": 1} for type_, count in counts.items()
    }
    return manifest


def cluster_of(observation: Observation) -> Object:
    found: Object = observation.job(NAME).get("status", {}).get("cluster") or {}
    return found


def uid_of(observation: Observation, type_: str, index: int) -> str:
    """Return the uid of the slot's present Pod, if that runs; else empty."""
    for worker in observation.workers(NAME):
        if (worker["spec"]["type"], worker["spec"]["index"]) == (type_, index):
            status = worker.get("status", {})
            current = status.get("observedIncarnation") == worker["spec"]["incarnation"]
            return str(status.get("podUid")) if current and status.get("phase") == "Running" else ""
    return ""


def tf_config(folder: Path, version: int) -> Object:
    """The TF_CONFIG with which the chief's command was started for a version."""
    found: Object = json.loads((folder / f"version-{version}").read_text())
    return found


@pytest.mark.named
def test_a_lost_server_is_another_version_a_lost_worker_is_not_and_the_chiefs_end_is_the_jobs(
    cluster: Cluster, observation: Observation
) -> None:
    folder = Path(cluster.storage(observation.namespace).path)
    command = [sys.executable, str(STAND_IN), str(folder)]
    cluster.apply(roles_job(cluster, command, chief=1, ps=2, worker=2, evaluator=1), observation.namespace)

    def trains(version: int) -> bool:
        return (folder / f"trains-{version}").exists()

    def running(type_: str, index: int) -> str:
        return observation.wait_for(f"{type_} {index} to run", lambda: uid_of(observation, type_, index))

    observation.wait_for("the first version to train", lambda: trains(1))
    chief, lost = running("chief", 0), running("worker", 1)
    cluster.delete_pod(observation.namespace, f"{NAME}-worker-1-1")

    def has_another(type_: str, index: int, before: str) -> bool:
        return uid_of(observation, type_, index) not in ("", before)

    observation.wait_for("another worker", lambda: has_another("worker", 1, lost))
    assert cluster_of(observation)["version"] == 1, "a worker's restart is nobody's business"

    lost = running("ps", 1)
    cluster.delete_pod(observation.namespace, f"{NAME}-ps-1-1")
    observation.wait_for("the second version to train", lambda: trains(2))
    assert tf_config(folder, 1) == tf_config(folder, 2), "the same names"
    assert lost not in (folder / "trains-2").read_text(), "by which the new Pod is found"

    plan = plans.scale_plan("move", job=NAME, type_="ps", migrate=[f"{NAME}-ps-0"])
    cluster.apply(plan, observation.namespace)
    observation.wait_for("the third version to train", lambda: trains(3))
    plans.wait_until_scaled(observation, "move")
    servers = tf_config(folder, 3)["cluster"]["ps"]
    assert [address.partition(".")[0] for address in servers] == [f"{NAME}-ps-2", f"{NAME}-ps-1"]
    assert cluster_of(observation)["tasks"]["ps"] == "2,1"

    last = plans.scale_plan("none", job=NAME, type_="ps", replicas=0)
    cluster.apply(last, observation.namespace)
    refused = plans.wait_for_verdict(observation, "none")
    assert "or remove its last" in str(refused["status"]["conditions"])

    assert uid_of(observation, "chief", 0) == chief, "its command starts anew, and not its Pod"
    assert jobs.phase(observation, NAME) == "Running", observation.describe()
    (folder / "finish").touch()
    jobs.wait_until_succeeded(observation, NAME)
