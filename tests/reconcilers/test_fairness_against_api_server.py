"""A small job beside one that has hundreds of Pods to make: it does not wait for them."""

from __future__ import annotations

from functools import partial

import pytest

from controller.resources import PODS
from crds.names import LABEL_JOB
from reconcilers.runtime.kinds import ELASTICWORKERS
from tests.reconcilers.cluster import NAMESPACE, ApiServer, Hollow, connected, controllers
from tests.reconcilers.test_against_api_server import only_jobs

pytestmark = pytest.mark.real

MANY = 200


async def test_a_job_s_pod_is_made_while_hundreds_of_another_s_wait_for_theirs(server: ApiServer) -> None:
    async with connected(server) as hollow:
        async with controllers(server, register=only_jobs):
            await hollow.submit("large", replicas=MANY)
            await hollow.until("all its workers", partial(_workers, hollow, MANY))
            await hollow.submit("small", replicas=1)
            await hollow.until("the other's worker", partial(_workers, hollow, MANY + 1))

        async with controllers(server):  # which finds all of them, the small job's last
            await hollow.until("the small job's Pod", partial(_pod_versions, hollow, "small"))
            (small,) = await _pod_versions(hollow, "small")
            assert sum(each < small for each in await _pod_versions(hollow, "large")) < MANY / 4


async def _pod_versions(hollow: Hollow, job: str) -> list[int]:
    """When each of the job's Pods was made, in the order of the API server."""
    listed = await hollow.client.list(PODS, NAMESPACE, label_selector=f"{LABEL_JOB}={job}")
    return [int(pod["metadata"]["resourceVersion"]) for pod in listed["items"]]


async def _workers(hollow: Hollow, count: int) -> bool:
    listed = await hollow.client.list(ELASTICWORKERS, NAMESPACE)
    return len(listed["items"]) == count
