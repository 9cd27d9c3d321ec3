"""What is over looks over: counts, phases and conditions of jobs that have ended, on the real API server."""

from __future__ import annotations

from typing import Any

import pytest

from reconcilers.runtime.kinds import ELASTICJOBS, ELASTICWORKERS
from tests.reconcilers.cluster import NAMESPACE, ApiServer, Hollow, connected, controllers

pytestmark = pytest.mark.real

COUNTS = ("pending", "active", "succeeded", "failed")
JSON = dict[str, Any]
FAILURE = {
    "sequence": 1,
    "round": 1,
    "rank": 1,
    "exitCode": 1,
    "message": "ValueError: bad",
    "time": "2026-01-01T00:00:00Z",
}


async def fail(hollow: Hollow, name: str) -> None:
    """Its program fails, and that is that."""
    await hollow.train(name, worker={"restartCount": 0})
    await hollow.say(f"{name}-worker-1", {"state": "Failed", "failure": FAILURE})
    await hollow.phase(name, "Failed")


async def looks_over(hollow: Hollow, name: str, **counts: int) -> None:
    wanted = [counts.get(kind, 0) for kind in COUNTS]

    async def over() -> bool:
        status = await hollow.status(name)
        found = [status["replicaStatuses"]["worker"].get(kind, 0) for kind in COUNTS]
        workers = await hollow.client.list(ELASTICWORKERS, NAMESPACE)
        phases = [w["status"]["phase"] for w in workers["items"] if w["spec"]["jobName"] == name]
        true = {c["type"] for c in status["conditions"] if c["status"] == "True"}
        alive = true & {"Running", "WorldFormed"} or {"Running", "Pending"} & {*phases}
        return found == wanted and not alive

    await hollow.until(f"{name} to look over with {counts}", over)


async def end_pods(hollow: Hollow, name: str, code: int) -> None:
    """Agents leave."""
    for pod in await hollow.pods(name):
        ended = {"name": "main", "image": "x", "imageID": "", "ready": False, "restartCount": 0}
        ended["state"] = {"terminated": {"exitCode": code, "reason": "Error"}}
        status = {"phase": "Failed" if code else "Succeeded", "containerStatuses": [ended]}
        await hollow.pod_status(pod, status)


async def test_a_failed_job_looks_failed_when_its_pods_have_ended(hollow: Hollow) -> None:
    await fail(hollow, "failed")
    await end_pods(hollow, "failed", 1)
    await looks_over(hollow, "failed", failed=2)
    worker = await hollow.client.get(ELASTICWORKERS, "failed-worker-0", NAMESPACE)
    assert not worker["status"].get("restarts"), "a Pod that ends with its job is no failure"


async def test_pods_that_ended_while_no_controller_ran_are_seen_by_the_next(server: ApiServer) -> None:
    async with connected(server) as hollow:
        async with controllers(server):
            await fail(hollow, "later")
        await end_pods(hollow, "later", 137)
        async with controllers(server):
            await looks_over(hollow, "later", failed=2)


async def test_a_job_whose_pods_are_cleaned_away_looks_over_too(hollow: Hollow) -> None:
    await hollow.submit("cleaned", runPolicy={"cleanPodPolicy": "All"}, worker={"template": quick()})
    await hollow.run_agent("cleaned-worker-0")
    deadline = {"spec": {"runPolicy": {"activeDeadlineSeconds": 1}}}
    await hollow.client.patch(ELASTICJOBS, "cleaned", deadline, NAMESPACE)
    await hollow.phase("cleaned", "Failed")
    for pod in await hollow.pods("cleaned"):
        await hollow.delete_pod(pod)
    await looks_over(hollow, "cleaned", failed=2)


def quick() -> JSON:
    return {"spec": {"terminationGracePeriodSeconds": 0, "containers": [{"name": "main", "image": "x"}]}}
