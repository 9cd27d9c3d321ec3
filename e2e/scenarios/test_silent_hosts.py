"""Hosts that lose their power without a word, and a link that breaks between two that live.

Each node has a network of its own. The controller is outside of it and reaches no agent, so two peers are the
witnesses here.
"""

from __future__ import annotations

import signal
import time
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext

import pytest

from e2e import checks, embedded, jobs
from e2e.cluster import Capability, Cluster
from e2e.deaths import Life, Mortals
from e2e.links import INTERFACE, NodeNetworks
from e2e.observation import Observation
from e2e.scenarios.test_node_check_links import api_server

NODES = 4
WORKERS = 3
LOST_SECONDS, LEADER_SECONDS, STANDBY_SECONDS = 3.5, 17.0, 4.0
"""Time until a silent host is known to be lost, the same with the leader on it, and until the others' next
step where a standby worker is there. A new Pod takes what its imports take beyond that."""
BUSY_MACHINE = 3.0
"""Factor of all limits where other tests run beside this one."""
BROKEN_SECONDS = 6.0

pytestmark = pytest.mark.needs(
    Capability.NETWORK_NAMESPACES, Capability.POWER, Capability.STORAGE, Capability.NODE_PROCESSES
)


@contextmanager
def training(
    cluster: Cluster, observation: Observation, *, standby: int = 0
) -> Iterator[tuple[Mortals, NodeNetworks, Life]]:
    """A job of three workers on four nodes that trains, and its nodes' networks."""
    mortals = Mortals(cluster, observation)
    with NodeNetworks(checks.node_names(cluster), api_server(cluster)) as networks:
        mortals.submit(
            WORKERS,
            standby=standby,
            launcher=networks.command("dlr", "run"),
            grace_seconds=30,
            variables={"GLOO_SOCKET_IFNAME": INTERFACE},
            elasticPolicy={"heartbeatTimeoutSeconds": 30, "shrinkAfterSeconds": 60},
        )
        life = mortals.wait_until_training(world_of=WORKERS)
        try:
            yield mortals, networks, life
            mortals.finish()
        finally:
            mortals.put_nodes_back()


@pytest.mark.parametrize(
    ("standby", "leader_too"),
    [(0, False), (1, False), (0, True)],
    ids=["new-pod", "standby", "leader-too"],
)
def test_a_host_without_power_costs_the_others_seconds(
    cluster: Cluster, observation: Observation, standby: int, leader_too: bool
) -> None:
    with (
        cluster.standby_controller() if leader_too else nullcontext(),
        training(cluster, observation, standby=standby) as (mortals, networks, life),
    ):
        if standby:
            observation.wait_for("a standby worker", lambda: stands_by(mortals))
        before = mortals.world()
        lost = before["members"][-1]
        node = mortals.node(lost)
        controller = cluster.control_plane(embedded.CONTROLLER)
        try:
            networks.silence(node)
            if leader_too:
                controller.signal(signal.SIGSTOP)
            silent_at = time.time()
            mortals.power_off(lost)
            after = mortals.wait_until_training(beyond=life, world_of=WORKERS)
        finally:
            if leader_too:
                controller.signal(signal.SIGCONT)
        took = after.began - silent_at
        last_exit = mortals.worker(lost)["status"]["lastExit"]
        decided = jobs.unix_time(last_exit["time"]) - silent_at
        print(f"lost after {decided:.1f} s, next step of the others after {took:.1f} s")
        print(last_exit["message"])
        assert (last_exit["exitClass"], last_exit["reason"]) == ("NodeLost", "Unreachable")
        assert mortals.world()["round"] == before["round"] + 1, "no world with the dead one comes between"
        assert decided < BUSY_MACHINE * (LEADER_SECONDS if leader_too else LOST_SECONDS)
        assert not standby or took < BUSY_MACHINE * STANDBY_SECONDS
    jobs.assert_one_world_a_round(observation, mortals.name)
    assert not mortals.restarts(), "no process failed in place"


def test_a_link_that_breaks_between_two_hosts_that_live_costs_no_round(
    cluster: Cluster, observation: Observation
) -> None:
    with training(cluster, observation) as (mortals, networks, life):
        world = mortals.world()
        one, other = (mortals.node(index) for index in world["members"][:2])
        networks.cut(one, other)
        observation.wait_for(
            "both to report each other",
            lambda: all(
                mortals.worker(i)["status"]["agent"].get("silentPeers") for i in world["members"][:2]
            ),
        )
        time.sleep(BROKEN_SECONDS)  # the length of the break is the scenario
        networks.mend(one, other)
        observation.wait_for(
            "nobody to be silent any more",
            lambda: (
                not any(mortals.worker(i)["status"]["agent"].get("silentPeers") for i in world["members"])
            ),
        )
        done = mortals.lives()[-1].last_step
        observation.wait_for("training to go on", lambda: mortals.lives()[-1].last_step > done)
        assert mortals.world()["round"] == world["round"]
        assert mortals.lives()[-1].name == life.name
        assert not mortals.last_failure()


def stands_by(mortals: Mortals) -> bool:
    return any(worker["status"].get("standby") for worker in mortals.observation.workers(mortals.name))
