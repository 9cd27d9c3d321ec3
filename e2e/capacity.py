"""Jobs that grow into free room, and the others that come and go."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from e2e import elasticity, jobs
from e2e.api import Object
from e2e.cluster import Cluster
from e2e.observation import Observation

GROWER = Path(__file__).parent / "fixtures" / "grower.py"
IDLE, URGENT = "dlr-e2e-idle", "dlr-e2e-urgent"
"""Priority classes: of extra workers, and of who is in a hurry."""
NAME = "grower"
NODE_CPUS = "5"
"""CPUs of a Pod: no two fit one of the virtual nodes, which have 8 each."""


def priority_classes(cluster: Cluster) -> None:
    for name, value in ((IDLE, -100), (URGENT, 1_000)):
        cluster.apply(
            {
                "apiVersion": "scheduling.k8s.io/v1",
                "kind": "PriorityClass",
                "metadata": {"name": name},
                "value": value,
            }
        )


def grower(
    cluster: Cluster,
    namespace: str,
    *,
    probe_seconds: int = 2,
) -> Object:
    """A job with a Pod a node that grows from one worker to two."""
    storage = cluster.storage(namespace)
    folder = Path(storage.path) / NAME
    folder.mkdir(exist_ok=True)
    growth: Object = {"priorityClassName": IDLE, "probeSeconds": probe_seconds}
    growth["minEfficiency"] = 0  # others of this machine have a share in the measured one
    manifest = jobs.scripted(
        cluster,
        NAME,
        1,
        ["dlr", "run", "--no-warm-start", str(GROWER)],
        storage=storage,
        env={"FOLDER": str(folder)},
        resources={"requests": {"cpu": NODE_CPUS}},
        elasticPolicy=elasticity.POLICY | {"opportunistic": growth},
    )
    return elasticity.bounded(manifest, 1, 2)


def end(cluster: Cluster, observation: Observation) -> None:
    (Path(cluster.storage(observation.namespace).path) / NAME / "end").touch()
    jobs.wait_until_succeeded(observation, NAME)


@contextmanager
def others(cluster: Cluster, observation: Observation, names: list[str]) -> Iterator[None]:
    """Pods that have a node each, until the end. All Pods but a job's go then."""
    for name in names:
        ask_for_node(cluster, observation, name)
    try:
        wait_for_nodes(observation, names)
        yield
    finally:
        pods = observation.pods().values()
        left = [pod["metadata"]["name"] for pod in pods if not pod["metadata"].get("ownerReferences")]
        if left:
            remove(cluster, observation, left)


def ask_for_node(cluster: Cluster, observation: Observation, name: str, priority: str = "") -> None:
    """A Pod that needs a node of its own."""
    container = {
        "name": "main",
        "image": cluster.image,
        "command": ["sleep", "3600"],
        "resources": {"requests": {"cpu": NODE_CPUS}},
    }
    spec: Object = {"containers": [container], "terminationGracePeriodSeconds": 0}
    spec |= {"priorityClassName": priority} if priority else {}
    pod = {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": name}, "spec": spec}
    cluster.apply(pod, observation.namespace)


def wait_for_nodes(observation: Observation, names: list[str]) -> None:
    def placed() -> bool:
        pods = observation.pods()
        return all(pods.get(name, {}).get("spec", {}).get("nodeName") for name in names)

    observation.wait_for(f"{names} to have their nodes", placed)


def remove(cluster: Cluster, observation: Observation, names: list[str]) -> float:
    """When they were gone: `kubectl delete --force` does not wait."""
    cluster.kubectl("delete", "pod", *names, "--force", "--grace-period=0", "-n", observation.namespace)
    return time.time()


def growth(observation: Observation) -> Object:
    found: Object = observation.job(NAME).get("status", {}).get("growth") or {}
    return found


def usage(observation: Observation) -> Object:
    """Return the outcome of a job that has ended, with its last round."""

    def complete() -> Object | None:
        status: Object = observation.job(NAME)["status"]
        known: Object = status.get("usage") or {}
        return known if known.get("round") == status["rendezvous"]["round"] else None

    return observation.wait_for(f"the usage of {NAME}", complete)


def wait_for_steps(observation: Observation, members: list[int]) -> float:
    """Wait until this world has reported a step; return the time."""
    world = elasticity.wait_for_world(observation, members, NAME)

    def has_step() -> bool:
        agents = [w.get("status", {}).get("agent") or {} for w in observation.workers(NAME)]
        return any(r["round"] == world["round"] for agent in agents for r in agent.get("rounds") or ())

    observation.wait_for(f"a step of round {world['round']}", has_step)
    return time.time()
