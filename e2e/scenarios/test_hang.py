"""A hang in a collective: the stacks are shown, the rank is named, and training goes on in its Pods."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from e2e import jobs
from e2e.api import Object
from e2e.cluster import Cluster
from e2e.observation import Observation

SCRIPT = Path(__file__).parent.parent / "fixtures" / "hanging.py"
HANG_TIMEOUT_SECONDS = 10
"""Set when all ranks stand still, so that none is slow on its way there; taken back with the next start."""
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
        elasticPolicy=jobs.QUICK_REPORTS,
    )


def set_hang_timeout(cluster: Cluster, observation: Observation, seconds: int | None) -> None:
    patch = json.dumps({"spec": {"elasticPolicy": {"hangTimeoutSeconds": seconds}}})
    cluster.kubectl("patch", "ej", NAME, "--type=merge", "-p", patch, "-n", observation.namespace)


@pytest.mark.named
def test_rank_that_hangs_is_shown_and_named_and_all_go_on_in_their_pods(
    cluster: Cluster, observation: Observation
) -> None:
    namespace = observation.namespace
    cluster.apply(hanging(cluster, namespace), namespace)
    observation.wait_for("both workers to wait at step 19", lambda: jobs.steps(observation, NAME) == [19, 19])
    world = jobs.rendezvous(observation, NAME)
    lines = cluster.dlr("job", "stacks", NAME, "-n", namespace, "--timeout", "300").splitlines()
    print(*lines, sep="\n")
    assert lines[0].startswith("4 processes at ")
    assert lines[1].startswith("rank 2 (hanging-worker-1-1 on ") and lines[1].endswith(", step 19:")
    assert "in wait_for_the_lock: with lock:" in lines[2]
    others = [line for line in lines if line.endswith("waiting for other ranks:")]
    assert others == ["ranks 0-1,3, step 19, waiting for other ranks:"]
    assert jobs.rendezvous(observation, NAME) == world, "nobody was disturbed"

    def failure() -> Object | None:
        found: Object = observation.job(NAME).get("status", {}).get("lastFailure") or {}
        return found if found.get("rank") == 2 else None

    set_hang_timeout(cluster, observation, HANG_TIMEOUT_SECONDS)
    blamed = observation.wait_for("rank 2 to be blamed for the hang", failure)
    set_hang_timeout(cluster, observation, None)
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
