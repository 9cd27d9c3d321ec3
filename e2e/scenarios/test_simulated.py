"""A job of four through a script of faults, real and simulated: the same worlds, blames, cordons, goodput."""

from __future__ import annotations

import json
import time
from collections import defaultdict
from collections.abc import Callable
from dataclasses import dataclass
from statistics import fmean

import pytest

from e2e import checks, jobs
from e2e.api import Kind, Object
from e2e.cluster import Capability, Cluster
from e2e.deaths import Mortals
from e2e.observation import Observation
from simulator.account import TimeUse
from simulator.arrivals import Fault
from simulator.engine import Simulation
from simulator.fleet import parsed
from simulator.state import DAY

NODES = 7
WORKERS = 4
HEARTBEAT_SECONDS = 25
"""Seconds after which the node's own Lease is silent, too, as the simulator assumes."""
TOLERANCE = 0.03
BETWEEN_SECONDS = 15.0
"""Between two faults, so that what a busy machine adds to a recovery is a point or two at most."""

pytestmark = [pytest.mark.needs(Capability.STORAGE, Capability.POWER)]


@dataclass(frozen=True)
class World:
    members: tuple[int, ...]
    incarnations: tuple[int, ...]
    blamed: str
    """Worker and class of the last failure when it was formed."""


def test_the_simulator_tells_the_life_that_the_cluster_lives(
    cluster: Cluster, observation: Observation
) -> None:
    mortals = Mortals(cluster, observation)
    policy = {"heartbeatTimeoutSeconds": HEARTBEAT_SECONDS}
    mortals.submit(WORKERS, elasticPolicy=policy)
    life = mortals.wait_until_training(world_of=WORKERS)
    created = jobs.unix_time(mortals.job()["metadata"]["creationTimestamp"])
    script: list[tuple[str, int, Callable[[], None]]] = [
        ("process", 1, lambda: mortals.tell(1, "raise")),
        ("podDeleted", 2, lambda: cluster.delete_pod(observation.namespace, mortals.pod(2), at_once=True)),
        ("device", 3, lambda: mortals.tell(3, "blame the device")),
        ("node", 2, lambda: mortals.power_off(2)),
        ("process", 0, lambda: mortals.tell(0, "exit")),
    ]
    blamed_node, forming_seconds = "", 0.0
    faults: list[Fault] = []
    took = defaultdict[str, list[float]](list)
    try:
        for kind, slot, strikes in script:
            time.sleep(BETWEEN_SECONDS)  # training goes on: that is what is measured
            if not faults:  # later on, a Pod that leaves in good order adds to it
                forming_seconds = mortals.job()["status"]["goodput"]["seconds"]["Forming"]
            struck = time.time()
            faults.append(Fault(struck - created, kind, slot))
            if kind == "device":
                blamed_node = mortals.node(slot)
            strikes()
            life = mortals.wait_until_training(life, world_of=WORKERS)
            took[kind].append(life.began - struck)
        time.sleep(BETWEEN_SECONDS)
        mortals.finish()
        job = mortals.job()
        cordons = cordoned(cluster)
    finally:
        mortals.put_nodes_back()

    goodput = job["status"]["goodput"]
    seconds = goodput["seconds"]
    lasted = jobs.seconds_between(job["metadata"]["creationTimestamp"], job["status"]["completionTime"])
    pod_seconds, start_seconds = (
        fmean(took["podDeleted"] + took["device"]) - forming_seconds,
        fmean(took["process"]),
    )
    # A loss is noticed up to a whole time-out later where the API server did not answer for a while.
    noticed_seconds = max(round(took["node"][0] - pod_seconds - forming_seconds), 1)
    fleet = parsed(
        {
            "nodes": WORKERS,
            "spares": NODES - WORKERS,
            "policies": {
                "heartbeatTimeoutSeconds": noticed_seconds,
                "memoryCheckpointSeconds": 0.05,
                "storageCheckpointSeconds": 0.05,
                "cordonLimitPercent": 50,
            },
            "times": {
                "podSeconds": max(pod_seconds, 0.1),
                "importSeconds": forming_seconds,
                "startSeconds": start_seconds,
                "stopSeconds": 0,
                "deviceStartSeconds": 0,
                "peerLossSeconds": 0.1,
                "communicatorSeconds": 0,
                "loadMemorySeconds": 0,
                "loadStorageSeconds": 0,
                "saveMemorySeconds": 0,
                "saveStorageSeconds": 0,
                "stepSeconds": 0.05,
            },
        },
        "the cluster",
    )
    simulation = Simulation(fleet)
    outcome = simulation.run(lasted / DAY, script=faults)
    simulated = [
        World(t.members, t.incarnations, "" if t.blamed.endswith("Unknown") else t.blamed)
        for t in outcome.story
    ]
    print(f"\nreal {goodput['ratio']:.1%} of {lasted:.0f} s: {seconds}; simulated {outcome.goodput:.1%}")
    print(dict(took), outcome.account, simulated, cordons, outcome.cordoned, sep="\n")
    assert simulated == lived(observation, mortals.name)
    assert cordons == [blamed_node]
    assert outcome.cordons == len(cordons)  # its nodes are of other names
    start = seconds["Pending"] + forming_seconds  # until there is a cluster to be told of
    begun = outcome.account.seconds[TimeUse.PENDING] + outcome.account.seconds[TimeUse.FORMING]
    real, told = goodput["ratio"] * lasted / (lasted - start), outcome.goodput * lasted / (lasted - begun)
    assert told == pytest.approx(real, abs=TOLERANCE)


def lived(observation: Observation, name: str) -> list[World]:
    """The worlds of the real job, each as it was first published."""
    found: dict[int, World] = {}
    for version in observation.history[Kind.JOB]:
        status = version.get("status", {})
        world = jobs.in_lists(status.get("rendezvous") or {})
        if version["metadata"]["name"] != name or world.get("phase") != "Formed":
            continue
        blamed = status.get("lastFailure") or {}
        known = World(tuple(world["members"]), tuple(world["incarnations"]), named(blamed, name))
        found.setdefault(world["round"], known)
    return [found[round_] for round_ in sorted(found)]


def named(blamed: Object, name: str) -> str:
    """Return the worker blamed; among failures that follow from another, the first to report."""
    if not blamed or blamed["exitClass"] == "Unknown":
        return ""
    return f"{blamed['worker'].replace(name, 'simulated')} {blamed['exitClass']}"


def cordoned(cluster: Cluster) -> list[str]:
    """The nodes that the controller has cordoned."""
    nodes = json.loads(cluster.kubectl("get", "nodes", "-o", "json").stdout)["items"]
    return [node["metadata"]["name"] for node in nodes if checks.is_cordoned(node)]
