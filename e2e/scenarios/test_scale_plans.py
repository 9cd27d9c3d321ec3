"""Changes of a job's size, Pods and resources: whoever asks, and whoever is killed meanwhile."""

from __future__ import annotations

import json
import signal

import pytest

from e2e import elasticity, embedded, jobs, plans
from e2e.api import Kind, Object
from e2e.cluster import Capability, Cluster
from e2e.observation import Observation

SCALE_PATH = "/apis/elastic.iml.github.io/v1alpha1/namespaces/{}/elasticjobs/idle/scale"
SCALE_CALL = ("spec", "the scale subresource")
"""Sources that only metadata.managedFields could distinguish, which the embedded API server does not keep."""


@pytest.mark.named
def test_whoever_asks_for_a_count_it_is_the_one_that_is_wanted_and_the_job_says_whose_it_was(
    cluster: Cluster, observation: Observation
) -> None:
    namespace = observation.namespace
    cluster.apply(elasticity.idle(cluster, workers=1, minimum=1, maximum=5), namespace)
    elasticity.wait_for_world(observation, [0], "idle")

    elasticity.scale(cluster, observation, 2, "idle")
    assert wanted(observation, 2) in SCALE_CALL

    patch = {"spec": {"replicaSpecs": {"worker": {"replicas": 3}}}}
    cluster.kubectl("patch", "ej", "idle", "--type=merge", "-p", json.dumps(patch), "-n", namespace)
    assert wanted(observation, 3) == "spec"

    cluster.apply(plans.scale_plan("up", replicas=4), namespace)
    assert wanted(observation, 4) == "ScalePlan up"
    plans.wait_until_scaled(observation, "up")
    elasticity.wait_for_world(observation, [0, 1, 2, 3], "idle")

    as_an_autoscaler_does(cluster, observation, 2)
    assert wanted(observation, 2) in SCALE_CALL
    world = elasticity.wait_for_world(observation, [0, 1], "idle")
    elasticity.wait_until_all_run(observation, world, "idle")
    jobs.assert_one_world_a_round(observation, "idle")


def wanted(observation: Observation, count: int) -> str:
    """Wait until so many are; who the status says has asked for them."""

    def known() -> str | None:
        status = observation.job("idle")["status"]
        desired = status["replicaStatuses"]["worker"]["desired"]
        scaling = status.get("scaling") or {}
        return scaling["by"] if desired == scaling.get("replicas") == count else None

    return observation.wait_for(f"{count} workers to be wanted", known)


def as_an_autoscaler_does(cluster: Cluster, observation: Observation, replicas: int) -> None:
    """Get the Scale, change its count, put it back; try again if the job has changed meanwhile.

    A Scale carries the resourceVersion of its job, and the controller writes the job's status whenever a
    worker moves on. So its writers have to expect conflicts, as autoscalers do.
    """
    path = SCALE_PATH.format(observation.namespace)

    def put_back() -> bool:
        scale = json.loads(cluster.kubectl("get", "--raw", path).stdout)
        assert scale["status"]["selector"], "an autoscaler finds the Pods to measure by it"
        scale["spec"]["replicas"] = replicas
        arguments = ("replace", "--raw", path, "-f", "-")
        done = cluster.kubectl(*arguments, stdin=json.dumps(scale), check=False)
        assert done.returncode == 0 or "Conflict" in done.stderr, done.stderr
        return done.returncode == 0

    observation.wait_for("the Scale to be put back", put_back)


@pytest.mark.needs(Capability.CONTROL_PLANE)
def test_a_controller_killed_at_each_step_of_a_plan_leaves_what_an_undisturbed_one_would(
    cluster: Cluster, observation: Observation
) -> None:
    namespace = observation.namespace
    cluster.apply(elasticity.idle(cluster, workers=2, minimum=2, maximum=4), namespace)
    steps: list[tuple[str, Object, list[int]]] = [
        ("made", plans.scale_plan("grow", replicas=3), [0, 1, 2]),  # the job has no world yet
        ("in the job", plans.scale_plan("migrate", migrate=["idle-worker-1"]), [0, 2, 3]),
        ("Applied", plans.scale_plan("shrink", replicas=2), [0, 2]),
    ]
    for at, plan, expected in steps:
        name = plan["metadata"]["name"]
        cluster.apply(plan, namespace)
        kill_controller_at(cluster, observation, name, at)
        plans.wait_until_scaled(observation, name)
        if at == "made":  # Pods that run are all there is to a job before its agents have spoken
            elasticity.wait_for_world(observation, expected, "idle")
        assert jobs.rendezvous(observation, "idle")["members"] == expected
    members = [world.members for world in elasticity.worlds(observation, "idle")]
    jobs.assert_one_world_a_round(observation, "idle")
    assert members[-3:] == [(0, 1, 2), (0, 2, 3), (0, 2)], "one round each, once there was a world"
    # A slot is deleted after the status that says so, by the next controller if this one was killed.
    observation.wait_for("two slots", lambda: len(observation.workers("idle")) == 2)


def kill_controller_at(cluster: Cluster, observation: Observation, plan: str, at: str) -> None:
    """SIGKILL as soon as the plan has come so far, or further."""

    def has_come() -> bool:
        found = observation.objects(Kind.PLAN).get(plan)
        if found is None:
            return False
        annotations = observation.job("idle")["metadata"].get("annotations") or {}
        in_job = found["metadata"]["uid"] in annotations.get("elastic.iml.github.io/scale", "")
        return at == "made" or (at == "in the job" and in_job) or bool(plans.phase(observation, plan))

    observation.wait_for(f"plan {plan} to be {at}", has_come)
    controller = cluster.control_plane(embedded.CONTROLLER)
    killed = controller.pid()
    controller.signal(signal.SIGKILL)
    observation.wait_for("the next controller", lambda: controller.pid() not in (None, killed))
