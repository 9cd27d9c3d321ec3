"""A job whose steps take three times as long says so, with its curve, and is checked at the next pause."""

from __future__ import annotations

import json

import pytest

from e2e import jobs
from e2e.api import Object
from e2e.cluster import Capability, Cluster
from e2e.deaths import Mortals
from e2e.observation import Observation

NODES = 2
PAST_SECONDS = 30 + 5 * (24 + 12 + 2)
"""Windows of five looks, and what a busy machine takes."""
NOTICED_SECONDS = 180

pytestmark = [pytest.mark.needs(Capability.STORAGE)]


def test_steps_that_take_longer_are_told_once_with_what_changed_then(
    cluster: Cluster, observation: Observation
) -> None:
    mortals = Mortals(cluster, observation)
    mortals.submit(2, nodeCheck={"enabled": True, "freshSeconds": 3_600, "stragglerRatio": 10})
    mortals.wait_until_training()

    def series() -> Object:
        lead: Object = mortals.worker(0)["status"]["agent"].get("series") or {}
        return lead

    def has_a_past() -> bool:
        return len(series().get("points") or ()) >= 38

    observation.wait_for("a past of 38 windows", has_a_past, 3 * PAST_SECONDS)
    assert not mortals.warning("Slow"), "while it is steady"
    assert set(series()["latest"]["numbers"]) == {"loss", "lr"}
    for rank in (0, 1):
        mortals.tell(rank, "slow")

    said = observation.wait_for("the job to be called slow", lambda: mortals.warning("Slow"), NOTICED_SECONDS)
    print(said["message"])
    assert "times the" in said["message"]
    found = json.loads(
        cluster.dlr("job", "diagnose", mortals.name, "-n", observation.namespace, "-o", "json")
    )
    assert found["cause"] == "Slow" and said["message"] in found["findings"][0]["text"]
    assert said["message"] in cluster.dlr("job", "status", mortals.name, "-n", observation.namespace)
    observation.wait_for("its Event", lambda: mortals.events("Slow") == [said["message"]])
    checked = len(observation.checks())
    mortals.kill(1)
    observation.wait_for("a check at the pause", lambda: len(observation.checks()) > checked)
    mortals.finish()
    jobs.assert_one_world_a_round(observation, mortals.name)
