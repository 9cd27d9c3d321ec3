"""A job that begins as an earlier one of its name ended, by the real reconcilers over objects in memory."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from hypothesis import Phase, given, settings
from hypothesis import strategies as st

from controller.errors import Forbidden
from controller.resources import PODS, Resource
from reconcilers.runtime.kinds import ELASTICJOBS
from tests.reconcilers.api import Api
from tests.reconcilers.autoscaling.test_growth import killer
from tests.reconcilers.build import NOW
from tests.reconcilers.cluster_model import add_nodes
from tests.reconcilers.life import JOB, Run, submit
from tests.reconcilers.scale_stage import Stage

GIB = 2**30
ENDED = {
    "phase": "Succeeded",
    "completionTime": NOW.isoformat(),
    "rendezvous": {"round": 7, "phase": "Formed"},
    "history": [{"state": "Training", "since": NOW.isoformat(), "round": 7, "size": 3}],
}
USAGE = {
    "round": 7,
    "worlds": [{"workers": 3, "steps": 100, "seconds": 50.0}],
    "memoryPeakBytes": {"worker": 5 * GIB},
}


def stage(earlier: dict[str, Any] | None = None) -> Stage:
    """A job that says nothing of its size, beside one that has ended."""
    made = Stage()
    made.add_job(1, optimizeMode="cluster")
    container = {"name": "main", "image": "x"}
    made.edit_job(maxReplicas=8, template={"spec": {"containers": [container]}})
    spec = made.job()["spec"]
    if earlier is not None:
        made.create(ELASTICJOBS, {"metadata": {"name": "j-1"}, "spec": spec, "status": earlier})
    return made


class Admitting(Api):
    """An API server with a LimitRange of 2 GiB, or without the ServiceAccount of the Pods at first."""

    lacks_account = False

    def _create(self, resource: Resource, body: dict[str, Any]) -> dict[str, Any]:
        if resource is PODS and self.lacks_account:
            if self.seconds < 20:
                raise Forbidden(
                    403, "Forbidden", "error looking up service account n/a: serviceaccount a not found"
                )
        elif resource is PODS and "memory" in str(body["spec"]["containers"][0].get("resources")):
            raise Forbidden(
                403, "Forbidden", "maximum memory usage per Container is 2Gi, but limit is 6144Mi"
            )
        return super()._create(resource, body)


async def begin(made: Stage) -> None:
    """Until it has begun, within a moment."""
    for _ in range(30):
        made.deliver_all()
        await made.look()
        made.act()


async def test_its_first_pods_have_the_memory_and_the_count_of_the_last() -> None:
    made = stage(ENDED | {"usage": USAGE})
    made.deliver_all()
    await made.look()
    assert not made.workers(), "of a size that is yet to be known"
    await begin(made)
    assert made.memory() == dict.fromkeys(range(3), "6144Mi")
    status = made.job()["status"]
    assert (status["rendezvous"]["round"], status["rendezvous"]["members"]) == (1, "0-2")
    assert (status["profile"]["outcome"], status["scaling"]["by"]) == ("Taken", "the profile of earlier jobs")
    told = "3 of type worker; memory 6144Mi for each of type worker: taken from j-1"
    assert [event for event in made.said() if "Profile" in event[0]] == [("ProfileTaken", told)]


async def test_what_the_last_came_to_is_waited_for_until_it_is_counted() -> None:
    made = stage(ENDED)
    await begin(made)
    assert "profile" not in made.job()["status"] and not made.workers()
    made.patch(ELASTICJOBS, "j-1", {"status": {"usage": USAGE}}, "status")
    await begin(made)
    assert made.job()["status"]["profile"]["outcome"] == "Taken"


async def test_the_first_of_its_name_begins_at_once_as_it_says_itself() -> None:
    made = stage()
    await begin(made)
    status = made.job()["status"]
    assert (status["profile"]["outcome"], status["rendezvous"]["round"]) == ("NoHistory", 1)
    told = "no job of the name j has trained and finished yet, so this one starts as specified"
    assert ("NoProfile", told) in made.said()


async def test_a_job_that_nobody_sizes_begins_after_some_seconds() -> None:
    made = stage()
    for expected in (0, 0, 1):
        made.deliver_all()
        await made.reconcile_job()
        assert len(made.workers()) == expected
        made.seconds += 4


async def test_a_request_that_a_webhook_refuses_is_told_and_the_job_begins_without() -> None:
    made = stage(ENDED | {"usage": USAGE})
    made.denied = "budget of team ads is spent"
    await begin(made)
    told = [message for reason, message in made.said() if reason == "NoProfile"]
    assert len(told) == 1 and told[0].endswith("budget of team ads is spent")
    assert made.job()["status"]["rendezvous"]["round"] == 1


@pytest.mark.parametrize(("lacks_account", "memory"), [(False, None), (True, "6144Mi")])
async def test_memory_of_the_last_is_given_up_where_it_is_refused_and_the_count_stays(
    lacks_account: bool, memory: str | None
) -> None:
    api = Admitting()
    api.lacks_account = lacks_account
    add_nodes(api, 3)
    worker = {"replicas": 1, "maxReplicas": 8}
    worker["template"] = {"spec": {"containers": [{"name": "main", "image": "x"}]}}
    submit(api, "j-1", replicaSpecs={"worker": worker}, optimizeMode="cluster", suspend=True)
    api.patch(ELASTICJOBS, "j-1", {"status": ENDED | {"usage": USAGE}}, "status")
    submit(api, replicaSpecs={"worker": worker}, optimizeMode="cluster")
    await Run(api).settle()
    status = api.get(ELASTICJOBS, JOB)["status"]
    assert (status["phase"], status["rendezvous"]["members"], status["warnings"]) == ("Running", "0-2", [])
    limits = [each["spec"]["containers"][0].get("resources", {}).get("limits") for each in api.list(PODS)]
    assert limits == [memory and {"memory": memory}] * 3


@given(kills=st.lists(st.integers(1, 12), max_size=4), lag=st.integers(0, 20))
@settings(max_examples=10, deadline=None, phases=[Phase.explicit, Phase.generate])
def test_a_controller_that_is_killed_at_any_write_begins_it_the_same(kills: list[int], lag: int) -> None:
    async def play() -> tuple[dict[int, str], str]:
        made = stage(ENDED | {"usage": USAGE})
        made.deliver_all()
        made.crash = killer(kills)
        for _ in range(lag):
            made.deliver(ELASTICJOBS)
            await made.look()
        await begin(made)
        return made.memory(), made.job()["status"]["profile"]["outcome"]

    assert asyncio.run(play()) == (dict.fromkeys(range(3), "6144Mi"), "Taken")
