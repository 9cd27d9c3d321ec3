"""Two controllers: one acts, the other takes over within the lease time, and no round ever has two worlds."""

from __future__ import annotations

import signal
import time
from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path

import pytest

from e2e import embedded, jobs
from e2e.cluster import Capability, Cluster, ControlPlaneProcess
from e2e.observation import Observation
from e2e.slow_api import SlowApi

NODES = 4
LATE_SECONDS = 3.5  # later than the leader waits before it tries again
LATE_FOR_SECONDS = 120
OUTAGE_SECONDS = 25.0
PAUSE_AFTER_OUTAGE_SECONDS = 2.0
LONGEST_GAP_SECONDS = 5.0
"""On a machine that does other things too; who waits for a Lease to expire takes more than 10 s."""


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


@pytest.mark.needs(Capability.CONTROL_PLANE)
def test_an_api_server_that_answers_late_for_two_minutes_costs_no_leader_its_lease(
    cluster: Cluster, observation: Observation, tmp_path: Path
) -> None:
    """The rival, which would take a Lease that is not renewed, gets its answers at once."""
    namespace = observation.namespace
    with (
        SlowApi(cluster.kubeconfig, tmp_path) as slow,
        cluster.standby_controller(slow.kubeconfig) as leading,
    ):
        observation.wait_for("the cluster's own controller to lead", lambda: leader(cluster))
        own = leader(cluster)
        cluster.control_plane(embedded.CONTROLLER).signal(signal.SIGSTOP)
        observation.wait_for("the other to lead", lambda: leader(cluster) not in ("", own))
        late, transitions = leader(cluster), cluster.controllers_lease()["leaseTransitions"]
        cluster.control_plane(embedded.CONTROLLER).signal(signal.SIGCONT)  # begins anew, and stands by
        cluster.apply(jobs.digits(cluster, namespace, epochs=jobs.ENDLESS_EPOCHS), namespace)
        world = jobs.wait_until_training(observation, 2)

        slow.delay_seconds = LATE_SECONDS
        until = time.monotonic() + LATE_FOR_SECONDS
        renewals: dict[str, float] = {}
        while time.monotonic() < until:
            lease = cluster.controllers_lease()
            assert (lease["holderIdentity"], lease["leaseTransitions"]) == (late, transitions)
            renewals.setdefault(lease["renewTime"], time.monotonic())
            time.sleep(0.1)
        seen = list(renewals.values())
        gaps = [after - before for before, after in pairwise(seen)]
        print(f"{len(seen)} renewals, at most {max(gaps):.1f} s apart")

        cluster.kill_process(namespace, jobs.current_pods(observation)[1])
        observation.wait_for(
            "the late leader to form the next world",
            lambda: jobs.rendezvous(observation)["round"] > world["round"],
        )
        assert leader(cluster) == late
        slow.delay_seconds = 0.0
        leading.signal(signal.SIGTERM)
        observation.wait_for("the cluster's own controller to lead again", lambda: leader(cluster) == own)


@pytest.mark.needs(Capability.CONTROL_PLANE)
def test_an_outage_of_the_api_server_ends_no_controller_and_leaves_no_gap(
    cluster: Cluster, observation: Observation, standby: ControlPlaneProcess
) -> None:
    cluster.apply(
        jobs.digits(cluster, observation.namespace, epochs=jobs.ENDLESS_EPOCHS), observation.namespace
    )
    world = jobs.wait_until_training(observation, 2)
    processes = [cluster.control_plane(embedded.CONTROLLER), standby]
    pids, led = [process.pid() for process in processes], cluster.controllers_lease()

    api_server = cluster.control_plane(embedded.API_SERVER)
    api_server.signal(signal.SIGSTOP)
    try:
        time.sleep(OUTAGE_SECONDS)  # the length of the outage is the scenario
    finally:
        api_server.signal(signal.SIGCONT)
    time.sleep(PAUSE_AFTER_OUTAGE_SECONDS)  # so is the moment of the kill
    took = seconds_to_next_round(cluster, observation, world["round"])
    print(f"process killed after an outage of {OUTAGE_SECONDS:g} s: the next world after {took:.1f} s")

    leads = cluster.controllers_lease()
    assert (leads["holderIdentity"], leads["leaseTransitions"]) == (
        led["holderIdentity"],
        led["leaseTransitions"],
    )
    assert [process.pid() for process in processes] == pids
    assert took < LONGEST_GAP_SECONDS


def seconds_to_next_round(cluster: Cluster, observation: Observation, round_: int) -> float:
    """Kill a training process, so that somebody must form another world."""
    cluster.kill_process(observation.namespace, jobs.current_pods(observation)[1])
    began = time.monotonic()
    observation.wait_for(
        "another controller to form the next world",
        lambda: jobs.rendezvous(observation)["round"] > round_,
    )
    return time.monotonic() - began
