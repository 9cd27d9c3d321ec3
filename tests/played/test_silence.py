"""A fault that nobody reports: a contained NVLink error whose processes stand still for a quarter of an hour.

After marin #8934: all ranks of all racks waited in one collective, at full utilisation, and the first CUDA error came
15 minutes later. What dlr makes of the silence; of the errors: tests/reconcilers/test_domain_failures.py.
"""

from __future__ import annotations

from typing import Any

import pytest

from agent.facts.world import Member
from controller.resources import NODES, Resource
from reconcilers.failure.hangs import ANSWER_SECONDS
from reconcilers.runtime.kinds import ELASTICJOBS, ELASTICWORKERS
from tests.played.cluster import Cluster, Disturbances
from tests.played.jobs import JOB, loop
from tests.reconcilers.api import Entry
from tests.reconcilers.life import edit, submit

JSON = dict[str, Any]
CLIQUE = "nvidia.com/gpu.clique"
LIMIT_SECONDS = 60
NOBODY = Member(-1, 0)
"""Where a world hangs in which each waits for another."""

pytestmark = pytest.mark.played


class Racks:
    """A job of four workers in the domains a and b."""

    def __init__(self, seed: int) -> None:
        self.cluster = cluster = Cluster(seed, loop(), Disturbances(), last_step=2_000)
        self.is_stuck = False
        self.lasts = False
        """Whether the next processes find the fabric as it was."""
        self.failures: list[tuple[float, JSON]] = []
        """Each failure that the job was told of, with its time."""
        served = cluster.api.on_change

        def changed(resource: Resource, entry: Entry) -> None:
            self._see(resource, entry)
            served(resource, entry)

        cluster.api.on_change = changed
        for number in range(4):
            labels = {"metadata": {"labels": {CLIQUE: "aabb"[number]}}}
            cluster.api.patch(NODES, f"node-{number}", labels)
        policy = {"domain": "auto", "hangTimeoutSeconds": LIMIT_SECONDS, "lastCallSeconds": 1}
        submit(cluster.api, elasticPolicy=policy | {"shrinkAfterSeconds": 20})
        edit(cluster.api, {"replicaSpecs": {"worker": {"replicas": 4, "minReplicas": 2}}})

    @property
    def status(self) -> JSON:
        found: JSON = self.cluster.api.get(ELASTICJOBS, JOB).get("status") or {}
        return found

    @property
    def now(self) -> float:
        return self.cluster.schedule.now

    def pass_by(self, seconds: float) -> None:
        """Let this time pass. While the fabric is stuck, no world ends a step."""
        schedule, end = self.cluster.schedule, self.now + seconds

        def is_over() -> bool:
            if self.is_stuck and (newest := self.cluster.newest_training) is not None:
                newest.hangs_at = NOBODY
            return self.now >= end

        schedule.at(end, "time is up", lambda: None)
        schedule.run(until=is_over)
        assert not self.cluster.wrong, self.cluster.wrong

    def _see(self, resource: Resource, entry: Entry) -> None:
        failure = (entry.obj.get("status") or {}).get("lastFailure") if resource is ELASTICJOBS else None
        if failure is not None and failure not in [known for _, known in self.failures[-1:]]:
            self.failures.append((self.now, failure))
            self.is_stuck = self.is_stuck and self.lasts

    def incarnations(self) -> list[int]:
        found = self.cluster.api.list(ELASTICWORKERS)
        return [w["spec"]["incarnation"] for w in sorted(found, key=lambda w: w["spec"]["index"])]


def in_silence(seed: int) -> Racks:
    """It has trained for a minute when the fabric stands still."""
    racks = Racks(seed)
    racks.pass_by(60.0)
    assert racks.status["phase"] == "Running" and not racks.failures
    racks.is_stuck = True
    return racks


@pytest.mark.parametrize("seed", range(2))
def test_silence_is_found_by_the_jobs_limit_and_nobody_is_blamed(seed: int) -> None:
    racks = in_silence(seed)
    began = racks.now
    racks.pass_by(LIMIT_SECONDS + ANSWER_SECONDS + 10.0)
    ((at, failure),) = racks.failures
    assert at - began <= LIMIT_SECONDS + ANSWER_SECONDS + 5.0, "nobody waits for the driver"
    assert failure["exitClass"] == "Hang" and not failure.get("domain")
    assert (
        failure["message"]
        .splitlines()[1]
        .startswith("No rank was found that hangs by itself; each rank waits")
    )
    steps = racks.cluster.made
    racks.pass_by(60.0)
    assert racks.status["phase"] == "Running" and racks.cluster.made > steps, (
        "the error went with its processes"
    )
    assert racks.incarnations() == [1] * 4 and racks.status["restarts"] == {"Hang": 1}


def test_silence_that_comes_back_with_each_start_ends_the_job_and_says_where_to_look() -> None:
    racks = in_silence(0)
    racks.lasts = True
    racks.pass_by(900.0)
    assert racks.status["reason"] == "SameErrorRepeated" and racks.incarnations() == [1] * 4
    assert "a link may be at fault" in racks.status["lastFailure"]["message"]
