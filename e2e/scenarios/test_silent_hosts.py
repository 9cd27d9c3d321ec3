"""A host that loses its power without a word.

Each node has a network of its own. The controller is outside of it and reaches no agent, so two peers are the
witnesses here.
"""

from __future__ import annotations

import time

import pytest

from e2e import checks, jobs
from e2e.cluster import Capability, Cluster
from e2e.deaths import Mortals
from e2e.links import INTERFACE, NodeNetworks
from e2e.observation import Observation
from e2e.scenarios.test_node_check_links import api_server

NODES = 4
WORKERS = 3
LOST_SECONDS = 3.5
"""Time until a silent host is known to be lost."""
BUSY_MACHINE = 3.0
"""Factor of the limit where other tests run beside this one."""

pytestmark = pytest.mark.needs(
    Capability.NETWORK_NAMESPACES, Capability.POWER, Capability.STORAGE, Capability.NODE_PROCESSES
)


def test_a_host_without_power_costs_the_others_seconds(cluster: Cluster, observation: Observation) -> None:
    mortals = Mortals(cluster, observation)
    with NodeNetworks(checks.node_names(cluster), api_server(cluster)) as networks:
        mortals.submit(
            WORKERS,
            launcher=networks.command("dlr", "run"),
            grace_seconds=30,
            variables={"GLOO_SOCKET_IFNAME": INTERFACE},
            elasticPolicy={"heartbeatTimeoutSeconds": 30, "shrinkAfterSeconds": 60},
        )
        life, before = mortals.wait_until_training(world_of=WORKERS), mortals.world()
        lost = before["members"][-1]
        try:
            networks.silence(mortals.node(lost))
            silent_at = time.time()
            mortals.power_off(lost)
            after = mortals.wait_until_training(beyond=life, world_of=WORKERS)
            last_exit = mortals.worker(lost)["status"]["lastExit"]
            decided = jobs.unix_time(last_exit["time"]) - silent_at
            print(
                f"lost after {decided:.1f} s, next step of the others after {after.began - silent_at:.1f} s"
            )
            assert (last_exit["exitClass"], last_exit["reason"]) == ("NodeLost", "Unreachable")
            assert mortals.world()["round"] == before["round"] + 1, "no world with the dead one comes between"
            assert decided < BUSY_MACHINE * LOST_SECONDS
            mortals.finish()
        finally:
            mortals.put_nodes_back()
    jobs.assert_one_world_a_round(observation, mortals.name)
    assert not mortals.restarts(), "no process failed in place"
