"""Two controllers: one acts, the other takes over within the lease time, and no round ever has two worlds."""

from __future__ import annotations

import signal
import time
from collections.abc import Iterator

import pytest

from e2e import embedded, jobs
from e2e.cluster import Capability, Cluster, ControlPlaneProcess
from e2e.observation import Observation

NODES = 4


@pytest.fixture
def standby(cluster: Cluster, observation: Observation) -> Iterator[ControlPlaneProcess]:
    """A second controller, waiting behind the cluster's own."""
    observation.wait_for("the cluster's own controller to lead", lambda: leader(cluster))
    with cluster.standby_controller() as process:
        yield process


def leader(cluster: Cluster) -> str:
    """The identity of the controller that holds the Lease; empty where none does."""
    return str(cluster.controllers_lease().get("holderIdentity") or "")


@pytest.mark.needs(Capability.CONTROL_PLANE)
def test_another_controller_acts_within_the_lease_time_and_no_round_has_two_worlds(
    cluster: Cluster, observation: Observation, standby: ControlPlaneProcess
) -> None:
    namespace = observation.namespace
    first = cluster.control_plane(embedded.CONTROLLER)
    cluster.apply(jobs.digits(cluster, namespace, epochs=jobs.ENDLESS_EPOCHS), namespace)
    world = jobs.wait_until_training(observation, 2)

    frozen = leader(cluster)
    # The leader freezes, as in a long stop of its machine: it does not know that its time runs out.
    first.signal(signal.SIGSTOP)
    took = seconds_to_next_round(cluster, observation, world["round"])
    print(f"leader frozen: the next world after {took:.1f} s")
    second = leader(cluster)
    assert second != frozen
    first.signal(signal.SIGCONT)
    world = jobs.wait_until_training(observation, 2)

    # It is back, and must not have acted; now the other dies.
    standby.signal(signal.SIGKILL)
    took = seconds_to_next_round(cluster, observation, world["round"])
    print(f"leader killed: the next world after {took:.1f} s")

    assert leader(cluster) == frozen, "its supervisor starts the cluster's own again, with its identity"

    after = jobs.wait_until_training(observation, 2, beyond_step=0)
    assert after["round"] == world["round"] + 1
    jobs.assert_one_world_a_round(observation)


def seconds_to_next_round(cluster: Cluster, observation: Observation, round_: int) -> float:
    """Kill a training process, so that somebody must form another world."""
    cluster.kill_process(observation.namespace, jobs.current_pods(observation)[1])
    began = time.monotonic()
    observation.wait_for(
        "another controller to form the next world",
        lambda: jobs.rendezvous(observation)["round"] > round_,
    )
    return time.monotonic() - began
