"""Many Pods that wait for one PodGroup: how often it is asked for, and what they are told."""

from __future__ import annotations

from typing import Any

import pytest

from controller.errors import NotFound
from crds.elasticjob import ElasticJob
from reconcilers.gang.gate import ANSWER_SECONDS, PATIENCE_SECONDS, GangGate
from reconcilers.gang.podgroup import pod_group_of
from reconcilers.runtime.refused import TRIES_PER_SECOND
from reconcilers.worker.assignment import STARTS_PER_SECOND
from tests.gang.build import gate_of
from tests.reconcilers.build import job, worker


class Server:
    """Answers for the one PodGroup, at a time of its own."""

    def __init__(self) -> None:
        self.now = 0.0
        self.asked = 0
        self.group: dict[str, Any] | None = None

    def monotonic(self) -> float:
        return self.now

    async def get(self, *_: Any, **__: Any) -> dict[str, Any]:
        self.asked += 1
        if self.group is None:
            raise NotFound(404, "NotFound", "", {"name": "digits", "kind": "podgroups"})
        return self.group


@pytest.fixture
def server() -> Server:
    return Server()


@pytest.fixture
def gate(server: Server) -> GangGate:
    return gate_of(server, jobs=[job()], monotonic=server.monotonic)


def gang(replicas: int = 4) -> ElasticJob:
    return job(replicas=replicas, schedulingPolicy={"gang": "coscheduling"})


def wanted_group() -> dict[str, Any]:
    found = pod_group_of(gang())
    assert found is not None
    return found.wanted


async def test_one_answer_does_for_all_who_wait(server: Server, gate: GangGate) -> None:
    for _ in range(1_000):
        obstacle = await gate.obstacle(worker(), gang())
        assert obstacle is not None and not obstacle.is_reported
    assert server.asked == 1
    server.group = wanted_group()
    server.now += ANSWER_SECONDS * 1.1
    assert await gate.obstacle(worker(), gang()) is None
    assert server.asked == 2


async def test_long_absence_is_told_and_asked_for_less_often(server: Server, gate: GangGate) -> None:
    soon = await gate.obstacle(worker(), gang())
    server.now += PATIENCE_SECONDS * 1.1
    later = await gate.obstacle(worker(), gang())
    assert soon is not None and later is not None
    assert later.is_reported and later.retry_seconds > soon.retry_seconds
    assert later.message == "the PodGroup digits has not been created yet"


async def test_of_many_that_wait_no_more_look_in_a_second_than_a_controller_can_bear(
    server: Server, gate: GangGate
) -> None:
    few, many = gang(8), gang(10_000)
    early = [await gate.obstacle(worker(), each) for each in (few, many)]
    server.now += PATIENCE_SECONDS * 1.1
    late = [await gate.obstacle(worker(), each) for each in (few, many)]
    waits = [each.retry_seconds for each in (*early, *late) if each is not None]
    assert waits == [0.25, 10_000 / STARTS_PER_SECOND, 5.0, 10_000 / TRIES_PER_SECOND]


async def test_group_of_an_earlier_job_of_the_name_is_no_reason_to_give_up(
    server: Server, gate: GangGate
) -> None:
    wanted = wanted_group()
    owner = wanted["metadata"]["ownerReferences"][0] | {"uid": "earlier"}
    server.group = wanted | {"metadata": wanted["metadata"] | {"ownerReferences": [owner]}}
    obstacle = await gate.obstacle(worker(), gang())
    assert obstacle is not None and obstacle.reason == "WaitingForPodGroup" and obstacle.retry_seconds < 1
