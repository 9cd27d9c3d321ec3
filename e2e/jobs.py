"""Jobs that the scenarios and the demo submit, and the questions they ask about them."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from datetime import datetime
from pathlib import Path
from typing import Any

from crds.rendezvous import Rendezvous
from e2e.api import Kind, Object
from e2e.cluster import Capability, Cluster, Storage
from e2e.observation import PATIENCE_SECONDS, Observation

GOOD_ACCURACY = 0.95
QUICK_REPORTS = {"heartbeatTimeoutSeconds": 18}
"""Agents report their step three times in this time, so waits for steps are short; who stands still for ten
seconds is not lost."""
KEEP_PODS = {"cleanPodPolicy": "None"}
"""Else one whose agent takes more than five seconds to leave a finished job is deleted, with its log."""

PACED = Path(__file__).parent / "fixtures" / "paced.py"
ENDLESS_EPOCHS = 10_000
CRAWLING_EPOCHS = 6
"""The last ones of a paced job."""
STEPS_AN_EPOCH = 23

TRAINING_RESOURCES = {"requests": {"cpu": "100m", "memory": "256Mi"}}


def job(name: str, template: Object, workers: int, **spec: Any) -> Object:
    """An ElasticJob around a Pod template. Further arguments go to its spec."""
    return {
        "apiVersion": Kind.JOB.value.api_version,
        "kind": "ElasticJob",
        "metadata": {"name": name},
        "spec": {"replicaSpecs": {"worker": {"replicas": workers, "template": template}}, **spec},
    }


def scripted(
    cluster: Cluster,
    name: str,
    workers: int,
    command: Sequence[str],
    *,
    storage: Storage | None = None,
    env: Mapping[str, str] | None = None,
    resources: Object = TRAINING_RESOURCES,
    grace_seconds: int | None = None,
    worker: Object | None = None,
    **spec: Any,
) -> Object:
    """Return a job whose Pods run a command.

    Args:
        storage: mounted in the Pods.
        env: variables beside OMP_NUM_THREADS, which is 1.
        grace_seconds: the Pods' grace period; default: that of Kubernetes.
        worker: further fields of its workers.
        spec: further fields of its spec.
    """
    variables = {"OMP_NUM_THREADS": "1", **(env or {})}
    container = {
        "name": "main",
        "image": cluster.image,
        "imagePullPolicy": "IfNotPresent",
        "command": [cluster.seen_by_pods(word) for word in command],
        "env": [{"name": key, "value": value} for key, value in variables.items()],
        "resources": resources,
        "volumeMounts": storage.mounts if storage else [],
    }
    pod: Object = {"restartPolicy": "Never", "containers": [container]}
    if storage:
        pod["volumes"] = storage.volumes
    if grace_seconds is not None:
        pod["terminationGracePeriodSeconds"] = grace_seconds
    manifest = job(name, {"spec": pod}, workers, **spec)
    manifest["spec"]["replicaSpecs"]["worker"] |= worker or {}
    return manifest


def digits(
    cluster: Cluster,
    namespace: str,
    *,
    workers: int = 2,
    epochs: int = 10,
    step_delay_seconds: float = 0.05,
    paced: bool = False,
    example: str = "plain",
    launcher: tuple[str, ...] = ("dlr", "run"),
    **spec: Any,
) -> Object:
    """An example as a job of this cluster: 23 steps an epoch, and examples/plain saves every 10 steps.

    A `paced` job is slow to end until it is told to `hurry` (fixtures/paced.py).
    """
    storage, script = cluster.storage(namespace), f"{cluster.examples}/{example}/train.py"
    variables = {
        "CHECKPOINT_DIR": storage.path,
        "EPOCHS": str(epochs),
        "STEP_DELAY_SECONDS": str(step_delay_seconds),
    }
    if paced and Capability.STORAGE in cluster.capabilities:  # elsewhere, nobody can tell it to hurry
        variables |= {"PACE": str(step_delay_seconds), "STEP_DELAY_SECONDS": "0"}
        variables |= {"SCRIPT": script, "HURRY": str(_hurry(cluster, namespace))}
        variables |= {"CRAWL_FROM": str((epochs - CRAWLING_EPOCHS) * STEPS_AN_EPOCH)}
        script = str(PACED)
    defaults = {"elasticPolicy": QUICK_REPORTS, "runPolicy": KEEP_PODS}
    return scripted(
        cluster,
        "digits",
        workers,
        [*launcher, script],
        storage=storage,
        env=variables,
        grace_seconds=0,
        **{**defaults, **spec},
    )


def hurry(cluster: Cluster, observation: Observation) -> None:
    """Have a paced job make the rest of its steps as fast as it can."""
    if Capability.STORAGE in cluster.capabilities:
        _hurry(cluster, observation.namespace).touch()


def _hurry(cluster: Cluster, namespace: str) -> Path:
    return Path(cluster.storage(namespace).path) / "hurry"


def in_dlrovers_words(manifest: Object) -> Object:
    """The job with its script started as in DLRover's examples: by `dlrover-run`, in a shell's text."""
    container = manifest["spec"]["replicaSpecs"]["worker"]["template"]["spec"]["containers"][0]
    flags = "--nnodes=1:$NODE_NUM --nproc_per_node=1 --max_restarts=1 --network-check"
    container["command"] = ["/bin/bash", "-c", f"dlrover-run {flags} {container['command'][-1]}"]
    return manifest


def shell(cluster: Cluster, script: str, *, name: str = "shell", workers: int = 1, **spec: Any) -> Object:
    """A job whose Pods run a shell script and know nothing of training."""
    command = ["/bin/sh", "-c", script]
    return scripted(cluster, name, workers, command, resources={}, grace_seconds=0, **spec)


def one_a_node(manifest: Object, cpus: str = "5") -> Object:
    """The job with Pods so large that no two share a node; the virtual ones have 8 CPUs each."""
    template = manifest["spec"]["replicaSpecs"]["worker"]["template"]
    template["spec"]["containers"][0]["resources"] = {"requests": {"cpu": cpus}}
    return manifest


def phase(observation: Observation, name: str = "digits") -> str:
    return str(observation.job(name).get("status", {}).get("phase", ""))


def rendezvous(observation: Observation, name: str = "digits") -> Object:
    return in_lists(observation.job(name).get("status", {}).get("rendezvous") or {})


def in_lists(world: Object) -> Object:
    """A world as it is on the wire, with lists of members and incarnations."""
    if not world:
        return world
    read = Rendezvous.model_validate(world)
    return {**world, "members": read.members, "incarnations": read.incarnations}


def condition(thing: Object, kind: str) -> Object:
    """A condition of an object; empty where it is not there."""
    conditions: list[Object] = thing.get("status", {}).get("conditions", [])
    return next((entry for entry in conditions if entry["type"] == kind), {})


def warning(job: Object, kind: str) -> Object:
    """A warning of a job; empty where it is not there."""
    warnings: list[Object] = job.get("status", {}).get("warnings", [])
    return next((entry for entry in warnings if entry["type"] == kind), {})


def steps(observation: Observation, name: str = "digits") -> list[int]:
    """The step that each worker reported last in its present round, by index; 0 for those that have not."""
    return [step_of(worker) for worker in observation.workers(name)]


def step_of(worker: Object) -> int:
    agent = worker.get("status", {}).get("agent") or {}
    progress = agent.get("progress")
    if not progress or seconds_between(agent["since"], progress["time"]) < 0:
        return 0  # of an earlier round
    return int(progress["step"])


def current_pods(observation: Observation, name: str = "digits") -> list[Object]:
    """The Pods of the workers' present incarnations, by index; those that do not exist are left out."""
    pods = observation.pods()
    names = [f"{w['metadata']['name']}-{w['spec']['incarnation']}" for w in observation.workers(name)]
    return [pods[pod] for pod in names if pod in pods]


def node_of(observation: Observation, pod: str) -> str:
    """Return the node of a Pod; empty while it has none."""
    return str(observation.pods().get(pod, {}).get("spec", {}).get("nodeName") or "")


def wait_until_training(
    observation: Observation,
    workers: int,
    *,
    beyond_step: int = 10,
    name: str = "digits",
    within_seconds: float = PATIENCE_SECONDS,
) -> Object:
    """Every worker has reported a step beyond the given one in a formed world; that world."""

    def training() -> Object | None:
        world = rendezvous(observation, name)
        done = steps(observation, name)
        formed = world.get("phase") == "Formed"
        return world if formed and len(done) == workers and min(done) > beyond_step else None

    what = f"{workers} workers to train beyond step {beyond_step}"
    return observation.wait_for(what, training, within_seconds)


def wait_until_succeeded(
    observation: Observation, name: str = "digits", within_seconds: float = PATIENCE_SECONDS
) -> None:
    observation.wait_for(
        f"job {name} to finish", lambda: phase(observation, name) in ("Succeeded", "Failed"), within_seconds
    )
    assert phase(observation, name) == "Succeeded", observation.describe()


def accuracy(cluster: Cluster, observation: Observation, name: str = "digits") -> float:
    """The accuracy that rank 0 printed at its end."""
    pod = current_pods(observation, name)[0]["metadata"]["name"]
    log = cluster.log(observation.namespace, pod)
    printed = re.search(r"test accuracy ([\d.]+)%", log)
    assert printed, f"no accuracy in the log of {pod}:\n{log[-2000:]}"
    return float(printed.group(1)) / 100


def worlds(observation: Observation, name: str = "digits") -> dict[int, set[str]]:
    """Every world that was ever seen formed, by round; more than one for a round is a split brain."""
    seen: dict[int, set[str]] = {}
    for version in observation.history[Kind.JOB]:
        world = version.get("status", {}).get("rendezvous") or {}
        if version["metadata"]["name"] == name and world.get("phase") == "Formed":
            key = ("members", "incarnations", "masterAddress", "masterPort", "worldSize")
            seen.setdefault(world["round"], set()).add(json.dumps([world.get(field) for field in key]))
    return seen


def assert_one_world_a_round(observation: Observation, name: str = "digits") -> None:
    split = {number: found for number, found in worlds(observation, name).items() if len(found) > 1}
    assert not split, f"more than one world for a round: {split}"


def unix_time(time: str) -> float:
    """Return an RFC 3339 time in s since 1970."""
    return datetime.fromisoformat(time).timestamp()


def seconds_between(earlier: str, later: str) -> float:
    """Between two RFC 3339 times."""
    return (datetime.fromisoformat(later) - datetime.fromisoformat(earlier)).total_seconds()
