"""The world follows what there is: nodes that go and come back, and counts that people change."""

from __future__ import annotations

import time

import pytest

from e2e import elasticity, jobs
from e2e.cluster import Capability, Cluster
from e2e.observation import Observation
from e2e.samples import SampleLog

NODES = 6
SAVE_EVERY_STEPS = 10
EPOCHS = 10
SMALL_LOSS = 0.5


@pytest.mark.needs(Capability.POWER, Capability.STORAGE)
def test_six_workers_in_pairs_are_four_when_a_node_is_lost_and_six_when_it_returns(
    cluster: Cluster, observation: Observation
) -> None:
    namespace = observation.namespace
    log = SampleLog(cluster, namespace)
    manifest = elasticity.digits(
        cluster, namespace, workers=6, minimum=2, maximum=6, epochs=EPOCHS, policy={"nodeUnit": 2}
    )
    cluster.apply(jobs.one_a_node(log.ask_for(manifest)), namespace)
    all_six = log.wait_for_world(observation, 6, steps=SAVE_EVERY_STEPS + 3)
    lost = jobs.node_of(observation, "digits-worker-5-1")

    cluster.power_off(lost)
    off_at = time.time()
    try:
        smaller = elasticity.wait_for_world(observation, [0, 1, 2, 3])
        shrunk_at = time.time()
        log.wait_for_world(observation, 4)
        observation.wait_for("the fifth to wait for a sixth", lambda: is_ready(observation, 4))
        assert observation.workers("digits")[4]["spec"]["incarnation"] == 1
        assert not jobs.node_of(observation, "digits-worker-5-2"), "there is no room for a replacement"
    finally:
        cluster.power_on(lost)
    on_at = time.time()
    larger = elasticity.wait_for_world(observation, [0, 1, 2, 3, 4, 5])
    grown_at = time.time()
    log.wait_for_world(observation, 6)
    jobs.hurry(cluster, observation)
    jobs.wait_until_succeeded(observation)

    changes = log.changes(all_six)
    print(f"power off → world of 4: {shrunk_at - off_at:.1f} s, first step {changes[0].began - off_at:.1f} s")
    print(f"power on → world of 6: {grown_at - on_at:.1f} s, first step {changes[-1].began - on_at:.1f} s")
    print(*changes, *elasticity.worlds(observation), sep="\n")
    assert [(change.before, change.after) for change in changes] == [(6, 4), (4, 6)]
    assert all(change.repeated_steps <= SAVE_EVERY_STEPS for change in changes)
    assert smaller["incarnations"] == [1, 1, 1, 1]
    assert larger["incarnations"] == [1, 1, 1, 1, 1, 2]
    curve = elasticity.curve(cluster.log(namespace, "digits-worker-0-1"))
    print(curve)
    assert curve.restarts_from_checkpoint
    assert curve.losses[max(curve.losses)] < SMALL_LOSS
    log.assert_exact(EPOCHS)
    assert jobs.accuracy(cluster, observation) >= jobs.GOOD_ACCURACY
    jobs.assert_one_world_a_round(observation)


def is_ready(observation: Observation, index: int) -> bool:
    """Whether this worker's agent waits for a world."""
    worker = observation.workers("digits")[index]
    return bool(worker["status"]["agent"]["state"] == "Ready")
