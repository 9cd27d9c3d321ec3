"""Failures on the real API server, with hollow Pods and agents: what is told, and what follows."""

from __future__ import annotations

import asyncio
import re
from collections.abc import AsyncIterator
from datetime import UTC, datetime
from typing import Any

import orjson
import pytest

from controller.errors import Invalid
from controller.resources import EVENTS, NODES
from reconcilers.runtime.kinds import ELASTICJOBS, ELASTICWORKERS
from tests.reconcilers.cluster import NAMESPACE, ApiServer, Hollow, connected

pytestmark = pytest.mark.real

GLOO = "RuntimeError: [/pytorch/third_party/gloo/gloo/transport/tcp/pair.cc:547] Connection closed by peer"
LIMITED = {
    "spec": {"containers": [{"name": "main", "image": "x", "resources": {"limits": {"memory": "1Gi"}}}]}
}


async def run(hollow: Hollow, name: str, round_: int, replicas: int = 2) -> None:
    for index in range(replicas):
        await hollow.say(f"{name}-worker-{index}", {"state": "Running", "observedRound": round_})


async def fail(
    hollow: Hollow, name: str, index: int, round_: int, state: str = "Failed", **more: Any
) -> None:
    failure = {
        "sequence": round_,
        "round": round_,
        "rank": index,
        "exitCode": 1,
        "message": "ValueError: bad",
        "time": datetime.now(UTC).isoformat(),
    }
    await hollow.say(f"{name}-worker-{index}", {"state": state, "failure": failure | more})


async def blamed(hollow: Hollow, name: str, worker: str) -> dict[str, Any]:
    async def check() -> dict[str, Any] | None:
        status = await hollow.status(name)
        return status if status.get("lastFailure", {}).get("worker") == worker else None

    return await hollow.until(f"{worker} to be blamed", check)


async def events(hollow: Hollow, name: str) -> list[dict[str, Any]]:
    listed = await hollow.client.list(EVENTS, NAMESPACE)
    return [e for e in listed["items"] if e["involvedObject"]["name"] == name]


async def test_error_that_comes_for_ever_fails_the_job_in_seconds_and_names_the_rank(hollow: Hollow) -> None:
    await hollow.train("ever")
    for round_ in (1, 2, 3):
        await fail(hollow, "ever", 1, round_, message=f"ValueError: bad {round_}\nTraceback …")
        if round_ < 3:
            await hollow.formed("ever", round_ + 1)
            await run(hollow, "ever", round_ + 1)
    status = await hollow.phase("ever", "Failed")
    failed = next(c for c in status["conditions"] if c["type"] == "Failed")
    assert failed["reason"] == "SameErrorRepeated"
    assert failed["message"].endswith("without getting further: ever-worker-1 rank 1: ValueError: bad 3")
    assert (status["restarts"], status["failureBudget"]["alike"]) == ({"UserError": 3}, 3)
    assert "Traceback" in status["lastFailure"]["message"]

    async def told() -> bool:
        return any(e["reason"] == "SameErrorRepeated" for e in await events(hollow, "ever"))

    await hollow.until("an Event", told)


async def test_the_second_failure_waits_and_the_world_says_so(hollow: Hollow) -> None:
    await hollow.train("patient")
    await fail(hollow, "patient", 0, 1)
    await hollow.formed("patient", 2)
    await run(hollow, "patient", 2)
    since = (await hollow.job("patient"))["metadata"]["resourceVersion"]
    await fail(hollow, "patient", 0, 2, message="KeyError: other")
    await hollow.formed("patient", 3)
    reasons = [world.get("waitsFor", "") async for world in worlds(hollow, "patient", since)]
    held = [reason for reason in reasons if "the next world waits until" in reason]
    assert held and "because training failed 2 times without getting further" in held[0]


async def worlds(hollow: Hollow, name: str, since: str) -> AsyncIterator[dict[str, Any]]:
    """The world in each status of the job that was written after resourceVersion `since`, up to the present."""
    newest, only = (await hollow.job(name))["metadata"]["resourceVersion"], f"metadata.name={name}"
    async with hollow.client.watch(
        ELASTICJOBS, NAMESPACE, resource_version=since, timeout_seconds=300, field_selector=only
    ) as stream:
        while (lines := await stream.lines(300)) is not None:
            for found in (orjson.loads(line)["object"] for line in lines if line):
                yield found["status"]["rendezvous"]
                if found["metadata"]["resourceVersion"] == newest:
                    return


async def test_who_failed_first_takes_the_blame_from_who_told_first(hollow: Hollow) -> None:
    await hollow.train("blame")
    await fail(hollow, "blame", 0, 1, message=GLOO)
    await blamed(hollow, "blame", "blame-worker-0")
    await fail(hollow, "blame", 1, 1, state="Ready")
    status = await blamed(hollow, "blame", "blame-worker-1")
    assert status["restarts"] == {"UserError": 1}
    await hollow.formed("blame", 2)


async def test_process_without_memory_gets_a_pod_with_more_and_is_counted_once(hollow: Hollow) -> None:
    node = {"apiVersion": "v1", "kind": "Node", "metadata": {"name": "big"}, "spec": {}}
    await hollow.client.create(NODES, node)
    allocatable = {"status": {"allocatable": {"memory": "64Gi"}}}
    await hollow.client.patch(NODES, "big", allocatable, subresource="status")
    await hollow.train("hungry", worker={"template": LIMITED})
    await fail(hollow, "hungry", 1, 1, exitCode=-9, cause="OOM", message="the process was killed by SIGKILL")
    await hollow.run_agent("hungry-worker-1", incarnation=2, failure=None)
    world = await hollow.formed("hungry", 2)
    assert world["incarnations"] == [1, 2]
    worker = await hollow.client.get(ELASTICWORKERS, "hungry-worker-1", NAMESPACE)
    assert worker["spec"]["resources"]["limits"]["memory"] == "2Gi"
    assert (worker["status"]["restarts"], worker["status"]["lastExit"]["reason"]) == ({"OOM": 1}, "Replaced")
    status = await hollow.status("hungry")
    assert (status["restarts"], status["failureBudget"]["spent"]) == ({"OOM": 1}, {"OOM": 1})
    assert status["lastFailure"]["round"] == 1, "the failure in place is what happened, not the new Pod"


async def test_rule_replaces_the_pod_off_its_node(hollow: Hollow) -> None:
    policy = {"rules": [{"action": "Replace", "onExitCodes": {"operator": "In", "values": [77]}}]}
    await hollow.train("moved", failurePolicy=policy)
    await fail(hollow, "moved", 0, 1, exitCode=77)
    await hollow.run_agent("moved-worker-0", incarnation=2, failure=None)
    assert (await hollow.formed("moved", 2))["incarnations"] == [2, 1]
    told = [e["message"] for e in await events(hollow, "moved") if e["reason"] == "WorkerRelaunched"]
    assert told == [
        "moved-worker-0 gets a new Pod, incarnation 2: a rule of failurePolicy replaces it: "
        "moved-worker-0 rank 0: ValueError: bad"
    ]


async def test_rule_fails_the_job_by_how_a_container_ended(hollow: Hollow) -> None:
    matcher = {"operator": "In", "values": [42], "containerName": "main"}
    policy = {"rules": [{"action": "FailJob", "onExitCodes": matcher}]}
    await hollow.submit("final", 1, failurePolicy=policy)
    await hollow.run_agent("final-worker-0")
    container = {"name": "main", "image": "x", "imageID": "", "ready": False, "restartCount": 0}
    container["state"] = {"terminated": {"exitCode": 42, "reason": "Error", "message": "loss is NaN"}}
    await hollow.pod_status("final-worker-0-1", {"phase": "Failed", "containerStatuses": [container]})
    status = await hollow.phase("final", "Failed")
    failed = next(c for c in status["conditions"] if c["type"] == "Failed")
    assert failed["reason"] == "FailurePolicy"
    assert (
        failed["message"]
        == "a rule of failurePolicy fails the job: final-worker-0: exit code 42: loss is NaN"
    )


async def test_node_that_dies_before_its_agent_is_heard_a_second_time_is_lost_in_time(hollow: Hollow) -> None:
    await hollow.submit("young", 1, elasticPolicy={"heartbeatTimeoutSeconds": 5})
    await hollow.bind("young-worker-0-1", "node-that-is-gone")
    await hollow.pod_status("young-worker-0-1", {"phase": "Running"})

    async def runs() -> bool:
        worker = await hollow.client.get(ELASTICWORKERS, "young-worker-0", NAMESPACE)
        return worker.get("status", {}).get("phase") == "Running"

    await hollow.until("it to run", runs)
    began = asyncio.get_running_loop().time()
    await hollow.beat("young-worker-0")
    await asyncio.sleep(0.5)  # nothing that follows from these is to be under way any more
    await hollow.run_agent("young-worker-0")

    async def lost() -> bool:
        worker = await hollow.client.get(ELASTICWORKERS, "young-worker-0", NAMESPACE)
        return worker["status"].get("restarts") == {"NodeLost": 1}

    await hollow.until("it to be lost", lost)
    assert asyncio.get_running_loop().time() - began > 4.5


async def test_storm_of_one_failure_makes_few_events(hollow: Hollow) -> None:
    policy = {"rules": [{"action": "Ignore", "onMessagePattern": "bad"}]}
    await hollow.train("storm", failurePolicy=policy)
    for round_ in range(1, 41):
        step = {"step": round_, "time": datetime.now(UTC).isoformat()}  # new ground: no waits
        await hollow.say("storm-worker-0", {"progress": step})
        await fail(hollow, "storm", 0, round_, step=round_)
        await hollow.formed("storm", round_ + 1)
        await run(hollow, "storm", round_ + 1)
    status = await hollow.status("storm")
    assert status["restarts"] == {"UserError": 40} and not status["failureBudget"].get("spent")
    assert len(await events(hollow, "storm")) < 20
    assert len(orjson.dumps(await hollow.job("storm"))) < 100_000


@pytest.mark.parametrize(
    ("rule", "sentence"),
    [
        ({"action": "Ignore"}, "a rule needs onExitCodes, onPodConditions or onMessagePattern"),
        ({"action": "Ignore", "onPodConditions": []}, "a rule needs onExitCodes"),
        ({"action": "Ignore", "onMessagePattern": "(unclosed"}, "onMessagePattern"),
        ({"action": "Retry", "onMessagePattern": "x"}, "action"),
        ({"action": "Ignore", "onExitCodes": {"operator": "In", "values": []}}, "values"),
        ({"action": "Ignore", "onExitCodes": {"operator": "Is", "values": [1]}}, "operator"),
    ],
)
async def test_rules_that_say_nothing_are_refused_with_their_path(
    server: ApiServer, rule: dict[str, Any], sentence: str
) -> None:
    async with connected(server) as hollow:
        with pytest.raises(Invalid, match=re.escape(sentence)) as refused:
            await hollow.submit("bad", failurePolicy={"rules": [rule]})
    assert "spec.failurePolicy.rules" in str(refused.value)
