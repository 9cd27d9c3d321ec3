"""Checkpoints in the agents' memory: what a killed process, a lost Pod and a flipped bit cost."""

from __future__ import annotations

import pytest

from e2e import jobs
from e2e.cluster import Capability, Cluster
from e2e.keepers import NAME, Training
from e2e.observation import Observation


@pytest.mark.named
@pytest.mark.needs(Capability.STORAGE)
def test_whatever_is_lost_training_goes_on_from_memory_and_ends_as_if_nothing_had_happened(
    cluster: Cluster, observation: Observation
) -> None:
    namespace = observation.namespace
    training = Training(cluster, observation)
    training.wait_for_start(1)

    cluster.kill_process(namespace, jobs.current_pods(observation, NAME)[1])
    resumed = training.wait_for_start(2)
    assert resumed[0] == resumed[1] >= training.reached(start=1) - 1, "at most one step is made again"
    training.wait_until_resumed_from(resumed[0], "memory")
    message = f"round 2 goes on from memory, step {resumed[0]}"
    training.wait("the Event", lambda: message in training.messages("TrainingResumed"))

    reached = training.reached(start=2)
    cluster.delete_pod(namespace, f"{NAME}-worker-0-1")  # rank 0's is no exception
    resumed = training.wait_for_start(3)
    assert resumed[0] == resumed[1] >= reached - 1
    training.wait_until_resumed_from(resumed[0], "peer")

    (training.folder / "damage-1").touch()
    training.wait("the kill", lambda: not (training.folder / "damage-1").exists())
    resumed = training.wait_for_start(4)
    assert resumed[0] == resumed[1] > 0
    training.wait("the Event", lambda: bool(training.messages("CheckpointDamaged")))
    budget = observation.job(NAME)["status"]["failureBudget"]
    assert not budget.get("spent"), "a damaged checkpoint is nobody's fault"

    training.finish()
