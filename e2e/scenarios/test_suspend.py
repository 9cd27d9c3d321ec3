"""spec.suspend: what a queue such as Kueue needs, to hold a job back and to take its nodes back."""

from __future__ import annotations

import json
import re

import pytest

from e2e import elasticity, jobs
from e2e.api import Kind
from e2e.cluster import Cluster
from e2e.observation import Observation

SAVE_EVERY_STEPS = 10


def set_suspend(cluster: Cluster, observation: Observation, suspend: bool) -> None:
    patch = json.dumps({"spec": {"suspend": suspend}})
    cluster.kubectl("patch", "ej", "digits", "--type=merge", "-p", patch, "-n", observation.namespace)


def wait_until_suspended(observation: Observation) -> None:
    observation.wait_for(
        "the job to be suspended",
        lambda: jobs.condition(observation.job("digits"), "Suspended").get("status") == "True",
    )


@pytest.mark.named
def test_a_job_made_suspended_makes_no_pods_and_one_suspended_later_goes_on_from_its_checkpoint(
    cluster: Cluster, observation: Observation
) -> None:
    namespace = observation.namespace
    manifest = elasticity.digits(
        cluster, namespace, workers=2, minimum=2, maximum=2, step_delay_seconds=0.1, suspend=True
    )
    cluster.apply(manifest, namespace)
    wait_until_suspended(observation)
    assert jobs.phase(observation) == "Suspended"
    assert not observation.objects(Kind.WORKER)
    assert not observation.history[Kind.POD]

    set_suspend(cluster, observation, False)
    before = jobs.wait_until_training(observation, 2)

    set_suspend(cluster, observation, True)
    wait_until_suspended(observation)
    observation.wait_for("all Pods to go", lambda: not observation.pods())
    assert jobs.phase(observation) == "Suspended"
    reached = max(jobs.step_of(worker) for worker in observation.history[Kind.WORKER])
    pods_so_far = all_pods(observation)

    jobs.hurry(cluster, observation)
    set_suspend(cluster, observation, False)
    jobs.wait_until_succeeded(observation)
    after = jobs.rendezvous(observation)
    assert after["round"] == before["round"] + 1
    assert len(all_pods(observation) - pods_so_far) == 2, "no Pod was made but those of the resumed workers"
    log = cluster.log(namespace, jobs.current_pods(observation)[0]["metadata"]["name"])
    resumed = re.search(r"rank 0 of 2: steps (\d+) to", log)
    assert resumed, log
    print(f"suspended at step {reached} or a little later, resumed from step {resumed.group(1)}")
    assert int(resumed.group(1)) > reached - SAVE_EVERY_STEPS
    assert jobs.accuracy(cluster, observation) >= jobs.GOOD_ACCURACY


def all_pods(observation: Observation) -> set[str]:
    """The uid of every Pod there ever was."""
    return {pod["metadata"]["uid"] for pod in observation.history[Kind.POD]}
