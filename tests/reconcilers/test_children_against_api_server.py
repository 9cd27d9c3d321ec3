"""What belongs to a worker, on the real API server: made again when it is missing, and no more asked than needed."""

from __future__ import annotations

import asyncio
from collections import Counter
from typing import Any

import pytest

from controller.api.calls import Call
from controller.errors import NotFound
from controller.manager import Manager
from controller.resources import (
    EVENTS,
    LEASES,
    PODS,
    ROLEBINDINGS,
    ROLES,
    SECRETS,
    SERVICEACCOUNTS,
    Resource,
)
from crds import names
from reconcilers.observed.options import PodOptions
from reconcilers.runtime.clock import Clock
from reconcilers.runtime.kinds import ELASTICJOBS, ELASTICWORKERS
from reconcilers.setup import add_indexes, add_jobs, add_workers
from tests.reconcilers.cluster import NAMESPACE, ApiServer, Hollow, connected, controllers

pytestmark = pytest.mark.real

NAMESPACES = Resource("", "v1", "namespaces", "Namespace", namespaced=False)


async def until_owned(hollow: Hollow, resource: Resource, name: str, uid: str) -> None:
    async def check() -> bool:
        found = await hollow.client.get(resource, name, NAMESPACE)
        return [owner["uid"] for owner in found["metadata"]["ownerReferences"]] == [uid]

    await hollow.until(f"{resource.kind} {name} of {uid}", check)


async def refusals(hollow: Hollow) -> list[str]:
    return [e["message"] for e in (await hollow.client.list(EVENTS))["items"] if "Refused" in e["reason"]]


async def test_job_that_is_deleted_and_applied_again_trains_with_a_lease_of_its_own(hollow: Hollow) -> None:
    await hollow.train("again")
    earlier = await hollow.client.get(ELASTICWORKERS, "again-worker-0", NAMESPACE)
    of_job = f"{names.LABEL_JOB}=again"

    async def pods() -> dict[str, Any]:
        listed = await hollow.client.list(PODS, NAMESPACE, label_selector=of_job)
        return {pod["metadata"]["uid"]: pod["metadata"] for pod in listed["items"]}

    earlier_pods = await pods()
    await hollow.client.delete(ELASTICJOBS, "again", NAMESPACE)
    await hollow.submit("again")

    async def next_worker() -> Any:
        found = await hollow.client.get(ELASTICWORKERS, "again-worker-0", NAMESPACE)
        return found if found["metadata"]["uid"] != earlier["metadata"]["uid"] else None

    worker = await hollow.until("the next worker", next_worker)

    async def are_gone() -> bool:
        """The kubelet's part, of those that are being deleted."""
        left = [pod for uid, pod in (await pods()).items() if uid in earlier_pods]
        for pod in left:
            if pod.get("deletionTimestamp"):
                await hollow.delete_pod(pod["name"])
        return not left

    await hollow.until("the earlier Pods to go", are_gone)
    for index in (0, 1):
        await hollow.run_agent(f"again-worker-{index}")
    for resource, name in ((LEASES, "again-worker-0"), (PODS, "again-worker-0-1")):
        await until_owned(hollow, resource, name, worker["metadata"]["uid"])
    await hollow.formed("again", 1)
    assert await refusals(hollow) == []


async def test_lease_and_rights_of_a_running_worker_come_back(hollow: Hollow) -> None:
    await hollow.train("robbed")
    worker = await hollow.client.get(ELASTICWORKERS, "robbed-worker-0", NAMESPACE)
    owned = f"dlr-{(await hollow.client.get(ELASTICJOBS, 'robbed', NAMESPACE))['metadata']['uid']}"
    for resource, name in (
        (LEASES, "robbed-worker-0"),
        (ROLES, owned),
        (ROLEBINDINGS, owned),
        (SERVICEACCOUNTS, owned),
    ):
        before = (await hollow.client.get(resource, name, NAMESPACE))["metadata"]["uid"]
        await hollow.client.delete(resource, name, NAMESPACE)

        async def made_again(resource: Resource = resource, name: str = name, before: str = before) -> bool:
            return bool((await hollow.client.get(resource, name, NAMESPACE))["metadata"]["uid"] != before)

        await hollow.until(f"{resource.kind} {name} again", made_again)
    await until_owned(hollow, LEASES, "robbed-worker-0", worker["metadata"]["uid"])
    lease = await hollow.client.get(LEASES, "robbed-worker-0", NAMESPACE)
    assert lease["spec"]["holderIdentity"] == "robbed-worker-0-1", "its silence counts"


async def test_what_is_made_for_a_job_goes_with_it(hollow: Hollow) -> None:
    await hollow.submit("brief", replicas=1)
    uid = (await hollow.client.get(ELASTICJOBS, "brief", NAMESPACE))["metadata"]["uid"]
    kinds = (SERVICEACCOUNTS, ROLES, ROLEBINDINGS, SECRETS)
    await hollow.until("its Pod", lambda: hollow.client.get(PODS, "brief-worker-0-1", NAMESPACE))

    async def made() -> list[str]:
        of_job = f"{names.LABEL_JOB}=brief"
        found = [
            (await hollow.client.list(kind, NAMESPACE, label_selector=of_job))["items"] for kind in kinds
        ]
        return [each["metadata"]["name"] for items in found for each in items]

    assert await made() == [f"dlr-{uid}"] * 3 + [f"dlr-key-{uid}"]
    await hollow.client.delete(ELASTICJOBS, "brief", NAMESPACE)

    async def gone() -> bool:
        return await made() == []

    await hollow.until("what it had", gone)


async def test_namespace_that_is_deleted_and_made_again_takes_a_job_at_once(hollow: Hollow) -> None:
    template = {"spec": {"serviceAccountName": "trainer", "containers": [{"name": "main", "image": "x"}]}}
    job = {
        "apiVersion": ELASTICJOBS.api_version,
        "kind": "ElasticJob",
        "metadata": {"name": "lab", "namespace": "lab"},
        "spec": {"replicaSpecs": {"worker": {"replicas": 1, "template": template}}},
    }
    account = {
        "apiVersion": "v1",
        "kind": "ServiceAccount",
        "metadata": {"name": "trainer", "namespace": "lab"},
    }

    async def gone() -> bool:
        for pod in (await hollow.client.list(PODS, "lab"))["items"]:
            await hollow.client.delete(PODS, pod["metadata"]["name"], "lab", grace_period_seconds=0)
        try:
            await hollow.client.get(NAMESPACES, "lab")
        except NotFound:
            return True
        return False

    for life in (1, 2):
        await hollow.client.create(
            NAMESPACES, {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": "lab"}}
        )
        await hollow.client.create(SERVICEACCOUNTS, account)
        await hollow.client.create(ELASTICJOBS, job)
        uid = (await hollow.client.get(ELASTICJOBS, "lab", "lab"))["metadata"]["uid"]
        for resource, name in ((PODS, "lab-worker-0-1"), (ROLEBINDINGS, f"dlr-{uid}-trainer")):
            await hollow.until(
                f"{name}, life {life}", lambda r=resource, n=name: hollow.client.get(r, n, "lab")
            )
        if life == 1:
            await hollow.client.delete(NAMESPACES, "lab")
            await hollow.until("the namespace to go", gone)
    assert await refusals(hollow) == []


async def test_a_worker_costs_four_writes_until_it_is_ready_and_none_after(server: ApiServer) -> None:
    """ElasticWorker, Lease, Pod and one status; key, rights, status and world of the job are shared by all its workers."""
    workers, no_pod_is_late = 10, Clock(monotonic=lambda: 0.0)

    def without_companions(manager: Manager) -> None:
        add_indexes(manager.cache)
        add_jobs(manager, Clock())
        add_workers(manager, no_pod_is_late, PodOptions())

    async with connected(server) as hollow, controllers(server, register=without_companions) as manager:
        writes: Counter[str] = Counter()
        write = manager.client._write

        async def counted(resource: Resource, call: Call, *rest: Any) -> Any:
            writes.update([f"{call.method} {resource.plural}"])
            return await write(resource, call, *rest)

        manager.client._write = counted  # type: ignore[method-assign]
        await hollow.submit("counted", replicas=workers)
        await asyncio.gather(*(hollow.run_agent(f"counted-worker-{i}") for i in range(workers)))
        await hollow.formed("counted", 1)
    shared = ("elasticjobs", "elasticworlds")
    of_workers = {what: count for what, count in writes.items() if not what.endswith(shared)}
    assert writes["POST elasticworlds"] == 1
    assert of_workers == {
        "POST elasticworkers": workers,
        "POST leases": workers,
        "POST pods": workers,
        "PATCH elasticworkers": workers,
        **dict.fromkeys(["POST secrets", "POST serviceaccounts", "POST roles", "POST rolebindings"], 1),
    }
