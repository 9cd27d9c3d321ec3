"""Elastic jobs of the scenarios, and what their worlds went through."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from e2e import jobs
from e2e.api import Kind, Object
from e2e.cluster import Cluster
from e2e.observation import Observation

GRACE_SECONDS = 10
POLICY = {**jobs.QUICK_REPORTS, "shrinkAfterSeconds": 6, "lastCallSeconds": 60}
"""A replacement is not waited for; all who come at once are, on two cores."""


@dataclass(frozen=True)
class World:
    """One that was formed."""

    round: int
    members: tuple[int, ...]
    formed_at: str
    reason: str


def digits(
    cluster: Cluster,
    namespace: str,
    *,
    workers: int,
    minimum: int,
    maximum: int,
    epochs: int = 10,
    step_delay_seconds: float = 0.2,
    **spec: Any,
) -> Object:
    """The example as an elastic and paced job, with time to save its state when it is stopped."""
    manifest = jobs.digits(
        cluster,
        namespace,
        workers=workers,
        epochs=epochs,
        step_delay_seconds=step_delay_seconds,
        paced=True,
        elasticPolicy=POLICY,
        **spec,
    )
    return bounded(manifest, minimum, maximum)


def idle(cluster: Cluster, *, workers: int, minimum: int, maximum: int, **spec: Any) -> Object:
    """A job whose training processes only sleep: agents, worlds and restarts as ever, and no other work."""
    command = ["dlr", "run", "--no-warm-start", "--no-python", "sleep", "3600"]  # nothing imports torch
    manifest = jobs.scripted(cluster, "idle", workers, command, elasticPolicy=POLICY, **spec)
    return bounded(manifest, minimum, maximum)


def bounded(manifest: Object, minimum: int, maximum: int) -> Object:
    """The job with these bounds of its worker count, and with a grace period."""
    worker = manifest["spec"]["replicaSpecs"]["worker"]
    worker |= {"minReplicas": minimum, "maxReplicas": maximum}
    worker["template"]["spec"]["terminationGracePeriodSeconds"] = GRACE_SECONDS
    return manifest


def worlds(observation: Observation, name: str = "digits") -> list[World]:
    """All that were ever formed, in order."""
    found: dict[int, World] = {}
    for version in observation.history[Kind.JOB]:
        world = jobs.in_lists(version.get("status", {}).get("rendezvous") or {})
        if version["metadata"]["name"] == name and world.get("phase") == "Formed":
            members = tuple(world["members"])
            found[world["round"]] = World(world["round"], members, world["formedAt"], world["reason"])
    return [found[number] for number in sorted(found)]


def wait_for_world(observation: Observation, members: list[int], name: str = "digits") -> Object:
    """The formed world of just these workers."""

    def formed() -> Object | None:
        world = jobs.rendezvous(observation, name)
        return world if world.get("phase") == "Formed" and world["members"] == members else None

    return observation.wait_for(f"a world of workers {members}", formed)


def wait_until_all_run(observation: Observation, world: Object, name: str) -> str:
    """All members' training processes are started in that world; when the last of them were."""

    def run() -> str | None:
        agents = [(w.get("status", {}).get("agent") or {}) for w in observation.workers(name)]
        started = [
            agent["since"]
            for agent in agents
            if agent.get("state") == "Running" and agent.get("observedRound") == world["round"]
        ]
        return max(started) if len(started) == len(world["members"]) else None

    return observation.wait_for(f"all of round {world['round']} to run", run)


def scale(cluster: Cluster, observation: Observation, replicas: int, name: str = "digits") -> None:
    """Scale as a user does."""
    cluster.kubectl("scale", f"ej/{name}", f"--replicas={replicas}", "-n", observation.namespace)
