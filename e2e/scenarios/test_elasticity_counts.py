"""A job is scaled up and down while it trains, and learns what it would have learned anyway."""

from __future__ import annotations

import itertools
from datetime import UTC, datetime

import pytest

from e2e import elasticity, jobs
from e2e.cluster import Capability, Cluster
from e2e.observation import Observation
from e2e.samples import SampleLog

SAVE_EVERY_STEPS = 10
EPOCHS = 10


@pytest.mark.needs(Capability.STORAGE)
def test_scaled_from_2_to_4_to_8_to_4_to_2_while_training(cluster: Cluster, observation: Observation) -> None:
    namespace, sizes = observation.namespace, [2, 4, 8, 4, 2]
    log = SampleLog(cluster, namespace)
    manifest = elasticity.digits(
        cluster,
        namespace,
        workers=2,
        minimum=2,
        maximum=8,
        epochs=EPOCHS,
        step_delay_seconds=0.3,
        policy={"lastCallSeconds": 120},
    )
    cluster.apply(log.ask_for(manifest), namespace)
    first = log.wait_for_world(observation, 2, steps=3)

    for before, size in itertools.pairwise(sizes):
        asked_at = datetime.now(UTC)
        elasticity.scale(cluster, observation, size)
        log.wait_for_world(observation, size, steps=3)
        formed = jobs.seconds_between(asked_at.isoformat(), jobs.rendezvous(observation)["formedAt"])
        trained = log.changes(first)[-1].began - asked_at.timestamp()
        print(f"kubectl scale {before} → {size}: world after {formed:.1f} s, first step {trained:.1f} s")
    jobs.hurry(cluster, observation)
    jobs.wait_until_succeeded(observation)

    changes = log.changes(first)
    print(*changes, *elasticity.worlds(observation), sep="\n")
    assert [(change.before, change.after) for change in changes] == list(itertools.pairwise(sizes))
    assert all(change.repeated_steps <= SAVE_EVERY_STEPS for change in changes)
    assert [len(world.members) for world in elasticity.worlds(observation)] == sizes, "one round a change"
    curve = elasticity.curve(cluster.log(namespace, "digits-worker-0-1"))
    print(curve)
    assert curve.restarts_from_checkpoint
    log.assert_exact(EPOCHS)
    assert jobs.accuracy(cluster, observation) >= jobs.GOOD_ACCURACY
    jobs.assert_one_world_a_round(observation)
    observation.wait_for("all that was grown to go", lambda: len(observation.workers("digits")) == 2)
