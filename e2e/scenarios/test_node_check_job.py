"""The node check of a job: before its training, for who joins it, and not for every little failure."""

from __future__ import annotations

import pytest

from e2e import checks, jobs
from e2e.api import Object
from e2e.cluster import Capability, Cluster
from e2e.faults import Broken, NodeProbes
from e2e.observation import Observation

NODES = 7
TIMEOUT_SECONDS = 300


def policy(**more: object) -> Object:
    return {
        "enabled": True,
        "timeoutSeconds": TIMEOUT_SECONDS,
        "stragglerRatio": checks.RATIO,
        "cordon": True,
        **more,
    }


@pytest.mark.needs(Capability.NODE_PROCESSES)
def test_the_last_node_is_broken_found_cordoned_and_replaced_and_the_job_succeeds(
    cluster: Cluster, observation: Observation
) -> None:
    """Its pair fails, both get other partners, and it fails again."""
    workers = 4
    namespace = observation.namespace
    manifest = jobs.digits(
        cluster, namespace, workers=workers, epochs=5, step_delay_seconds=0, nodeCheck=policy()
    )
    cluster.apply(jobs.one_a_node(manifest), namespace)
    last = observation.wait_for(
        "the last worker to be placed",
        lambda: jobs.node_of(observation, f"digits-worker-{workers - 1}-1"),
    )
    with Broken(NodeProbes(namespace, last, "pair")) as fault:
        first = observation.wait_for("the check before training", observation.checks)[0]
        check = checks.wait_until_finished(observation, first["metadata"]["name"])
        local, pairs = checks.probe_seconds(observation, check)
        print(f"{checks.duration(check)}; probes: {local:.0f} s local, {pairs:.0f} s with others")

        nodes = check["status"]["nodes"]
        assert nodes[-1] == last
        assert len(set(nodes)) == workers
        checks.assert_only_those_with(check, 1, last)
        assert checks.verdicts(check) == {**dict.fromkeys(nodes, "Healthy"), last: "Faulty"}
        assert check["status"]["faultyNodes"] == [last]
        assert len(fault.killed) == 3, "three rounds find it, and no other tests it"
        checks.wait_until_cordoned(cluster, observation, last)
        checks.assert_in_service(cluster, nodes[:-1])

        jobs.wait_until_succeeded(observation, within_seconds=checks.FINISHED_SECONDS)  # with another check
    world = jobs.rendezvous(observation)
    assert world["members"] == list(range(workers))
    assert world["incarnations"] == [*[1] * (workers - 1), 2], "just the last worker was relaunched"
    assert world["round"] == 1, "nobody trained before the check had passed everybody"
    spare = jobs.node_of(observation, f"digits-worker-{workers - 1}-2")
    assert spare not in nodes
    assert jobs.accuracy(cluster, observation) >= jobs.GOOD_ACCURACY

    second = observation.checks()[1]
    assert checks.verdicts(second)[spare] == "Healthy", "who joins is checked first"
    assert set(second["status"]["reused"]) == set(second["status"]["nodes"]) - {spare}, (
        "and the others, who passed a moment ago, are its partners"
    )
    assert len(observation.checks()) == 2


def wait_for_world(observation: Observation, number: int) -> Object:
    def formed() -> Object | None:
        world = jobs.rendezvous(observation)
        return world if world.get("round", 0) >= number and world["phase"] == "Formed" else None

    return observation.wait_for(f"world {number}", formed, checks.FINISHED_SECONDS)
