"""The world follows what there is: nodes that go and come back, and counts that people change."""

from __future__ import annotations

import itertools
import time

import pytest

from e2e import elasticity, jobs
from e2e.cluster import Capability, Cluster
from e2e.observation import Observation
from e2e.samples import SampleLog

NODES = 6
SAVE_EVERY_STEPS = 10
SMALL_LOSS = 0.5


def tell_curve(curve: elasticity.Curve) -> None:
    told = ", ".join(f"{step}: {loss:.2f}" for step, loss in curve.losses.items())
    print(f"loss by step: {told}; went on from steps {curve.starts}")


@pytest.mark.needs(Capability.POWER, Capability.STORAGE)
def test_six_workers_in_pairs_are_four_when_a_node_is_lost_and_six_when_it_returns(
    cluster: Cluster, observation: Observation
) -> None:
    namespace, epochs = observation.namespace, 7
    log = SampleLog(cluster, namespace)
    manifest = elasticity.digits(
        cluster, namespace, workers=6, minimum=2, maximum=6, epochs=epochs, policy={"nodeUnit": 2}
    )
    cluster.apply(jobs.one_a_node(log.ask_for(manifest)), namespace)
    log.wait_for_world(observation, 6)
    lost = jobs.node_of(observation, "digits-worker-5-1")

    cluster.power_off(lost)
    off_at = time.time()
    try:
        smaller = elasticity.wait_for_world(observation, [0, 1, 2, 3])
        shrunk_at = time.time()
        log.wait_for_world(observation, 4)
        waiting = observation.workers("digits")[4]
        assert (waiting["spec"]["incarnation"], waiting["status"]["agent"]["state"]) == (1, "Ready")
        assert not jobs.node_of(observation, "digits-worker-5-2"), "there is no room for a replacement"
    finally:
        cluster.power_on(lost)
    on_at = time.time()
    larger = elasticity.wait_for_world(observation, [0, 1, 2, 3, 4, 5])
    grown_at = time.time()
    jobs.wait_until_succeeded(observation)

    changes = log.changes()
    print(f"power off → world of 4: {shrunk_at - off_at:.1f} s, first step {changes[0].began - off_at:.1f} s")
    print(f"power on → world of 6: {grown_at - on_at:.1f} s, first step {changes[-1].began - on_at:.1f} s")
    print(*changes, *elasticity.worlds(observation), sep="\n")
    assert [(change.before, change.after) for change in changes] == [(6, 4), (4, 6)]
    assert all(change.repeated_steps <= SAVE_EVERY_STEPS for change in changes)
    assert smaller["incarnations"] == [1, 1, 1, 1]
    assert larger["incarnations"] == [1, 1, 1, 1, 1, 2]
    curve = elasticity.curve(cluster.log(namespace, "digits-worker-0-1"))
    tell_curve(curve)
    assert curve.restarts_from_checkpoint
    assert curve.losses[max(curve.losses)] < SMALL_LOSS
    log.assert_exact(epochs)
    assert jobs.accuracy(cluster, observation) >= jobs.GOOD_ACCURACY
    jobs.assert_one_world_a_round(observation)


@pytest.mark.needs(Capability.STORAGE)
def test_scaled_from_2_to_4_to_8_to_4_to_2_while_training(cluster: Cluster, observation: Observation) -> None:
    namespace, epochs, sizes = observation.namespace, 8, [2, 4, 8, 4, 2]
    log = SampleLog(cluster, namespace)
    manifest = elasticity.digits(
        cluster, namespace, workers=2, minimum=2, maximum=8, epochs=epochs, policy={"lastCallSeconds": 30}
    )
    cluster.apply(log.ask_for(manifest), namespace)
    log.wait_for_world(observation, 2)

    for before, size in itertools.pairwise(sizes):
        elasticity.scale(cluster, observation, size)
        asked_at = time.time()
        log.wait_for_world(observation, size)
        trained_at = log.changes()[-1].began
        print(f"kubectl scale {before} → {size}: trains again {trained_at - asked_at:.1f} s later")
    jobs.wait_until_succeeded(observation)

    changes = log.changes()
    print(*changes, *elasticity.worlds(observation), sep="\n")
    assert [(change.before, change.after) for change in changes] == list(itertools.pairwise(sizes))
    assert all(change.repeated_steps <= SAVE_EVERY_STEPS for change in changes)
    assert [len(world.members) for world in elasticity.worlds(observation)] == sizes, "one round a change"
    curve = elasticity.curve(cluster.log(namespace, "digits-worker-0-1"))
    tell_curve(curve)
    assert curve.restarts_from_checkpoint
    log.assert_exact(epochs)
    assert jobs.accuracy(cluster, observation) >= jobs.GOOD_ACCURACY
    jobs.assert_one_world_a_round(observation)
    observation.wait_for("all that was grown to go", lambda: len(observation.workers("digits")) == 2, 30)
