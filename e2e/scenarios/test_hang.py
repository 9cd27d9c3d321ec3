"""A hang in a collective: found, the right rank named with its stack, and training goes on in its Pods."""

from __future__ import annotations

from pathlib import Path

import pytest

from e2e import jobs
from e2e.api import Object
from e2e.cluster import Cluster
from e2e.observation import Observation

SCRIPT = Path(__file__).parent.parent / "fixtures" / "hanging.py"
HANG_TIMEOUT_SECONDS = 30
NAME = "hanging"


def hanging(cluster: Cluster, namespace: str) -> Object:
    """Four ranks in two Pods."""
    storage = cluster.storage(namespace)
    variables = {
        "SCRIPT": SCRIPT.read_text(),
        "FOLDER": storage.path,
    }
    write = 'script="$(mktemp -d)/hanging.py"; printf %s "$SCRIPT" > "$script"'
    return jobs.scripted(
        cluster,
        NAME,
        2,
        ["/bin/sh", "-c", f'{write}; exec dlr run --nproc-per-node=2 "$script"'],
        storage=storage,
        env=variables,
        grace_seconds=5,
        elasticPolicy={**jobs.QUICK_REPORTS, "hangTimeoutSeconds": HANG_TIMEOUT_SECONDS},
    )


@pytest.mark.named
def test_rank_that_hangs_is_named_and_all_go_on_in_their_pods(
    cluster: Cluster, observation: Observation
) -> None:
    namespace = observation.namespace
    cluster.apply(hanging(cluster, namespace), namespace)

    def failure() -> Object | None:
        found: Object = observation.job(NAME).get("status", {}).get("lastFailure") or {}
        return found if found.get("rank") == 2 else None

    blamed = observation.wait_for("rank 2 to be blamed for the hang", failure)
    assert (blamed["worker"], blamed["exitClass"]) == ("hanging-worker-1", "Hang")
    assert (blamed["round"], blamed["step"]) == (1, 19)
    print(blamed["message"])
    first_line, inner, outer = blamed["message"].splitlines()[:3]
    assert "rank 2, after step 19, is at " in first_line
    assert "in wait_for_the_lock: with lock:" in first_line
    assert "in wait_for_the_lock: with lock:" in inner
    assert "in main: wait_for_the_lock()" in outer

    stacks = {
        stack["rank"]: stack
        for worker in observation.workers(NAME)
        for stack in (worker["status"]["agent"].get("failure") or {}).get("stacks", [])
    }
    assert stacks[2]["step"] == 19
    assert not stacks[2].get("inCollective", False)
    assert stacks[3]["inCollective"], "its neighbour waits for it"
    assert "all_reduce" in stacks[3]["frames"]

    jobs.wait_until_succeeded(observation, NAME)
    status = observation.job(NAME)["status"]
    assert status["restarts"] == {"Hang": 1}
    world = jobs.rendezvous(observation, NAME)
    assert (world["round"], world["incarnations"]) == (2, [1, 1]), "started again in the same Pods"
    assert world["worldSize"] == 4, "the processes of a Pod are ranks of one world"
    told = [event["message"] for event in observation.events(of=NAME)]
    assert any("hanging-worker-1 rank 2" in message for message in told), told
    jobs.assert_one_world_a_round(observation, NAME)
