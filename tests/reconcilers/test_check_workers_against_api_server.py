"""The Worker reconciler by itself on the real API server: Pods of checks, and jobs' Pods off faulty nodes.

The tests play the reconcilers of NodeChecks and ElasticJobs.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from controller.errors import NotFound
from controller.manager import Manager
from controller.resources import (
    EVENTS,
    LEASES,
    NAMESPACES,
    NODES,
    PODS,
    ROLEBINDINGS,
    ROLES,
    SECRETS,
    SERVICEACCOUNTS,
)
from crds import names
from reconcilers.observed.builder import check_labels, owner_reference
from reconcilers.observed.options import PodOptions
from reconcilers.runtime.clock import Clock
from reconcilers.runtime.kinds import ELASTICJOBS, ELASTICWORKERS, NODECHECKS
from reconcilers.setup import add_indexes, add_workers
from tests.reconcilers.cluster import NAMESPACE, ApiServer, Hollow, connected, controllers

pytestmark = pytest.mark.real

IMAGE = "dlr-worker:test"
NODE = "gpu-node"
GPU = "nvidia.com/gpu"


class Lab(Hollow):
    """Plays those who make checks and their workers, and decide."""

    async def check(self, name: str, namespace: str = NAMESPACE, **spec: Any) -> None:
        """A check of one node, whose worker is made too."""
        made = await self.client.create(
            NODECHECKS,
            {
                "apiVersion": NODECHECKS.api_version,
                "kind": NODECHECKS.kind,
                "metadata": {"name": name, "namespace": namespace},
                "spec": {"nodes": [NODE]} | spec,
            },
        )
        worker = {"checkName": name, "type": names.CHECK, "index": 0, "nodeName": NODE}
        await self.worker(f"{name}-check-0", made, worker, check_labels(name, 0))

    async def worker(
        self, name: str, owner: dict[str, Any], spec: dict[str, Any], labels: dict[str, str]
    ) -> None:
        metadata = owner["metadata"]
        await self.client.create(
            ELASTICWORKERS,
            {
                "apiVersion": ELASTICWORKERS.api_version,
                "kind": ELASTICWORKERS.kind,
                "metadata": {
                    "name": name,
                    "namespace": metadata["namespace"],
                    "labels": labels,
                    "ownerReferences": [owner_reference(owner["kind"], metadata["name"], metadata["uid"])],
                },
                "spec": spec,
            },
        )

    async def finish(self, check: str, phase: str = "Succeeded") -> None:
        """A minute ago, so that all agents should have left."""
        ended = (datetime.now(UTC) - timedelta(minutes=1)).strftime("%Y-%m-%dT%H:%M:%SZ")
        status = {"phase": phase, "completionTime": ended}
        await self.client.patch(NODECHECKS, check, {"status": status}, NAMESPACE, subresource="status")

    async def pod(self, name: str, namespace: str = NAMESPACE) -> dict[str, Any]:
        return await self.until(f"Pod {name}", lambda: self.client.get(PODS, name, namespace))

    async def gone(self, pod: str) -> bool:
        try:
            found = await self.client.get(PODS, pod, NAMESPACE)
        except NotFound:
            return True
        return bool(found["metadata"].get("deletionTimestamp"))

    async def worker_status(self, worker: str) -> dict[str, Any]:
        return (await self.client.get(ELASTICWORKERS, worker, NAMESPACE)).get("status", {})

    async def until_status(self, worker: str, **expected: Any) -> dict[str, Any]:
        async def check() -> dict[str, Any] | None:
            status = await self.worker_status(worker)
            return status if expected.items() <= status.items() else None

        return await self.until(f"{worker} {expected}", check)


@pytest.fixture(scope="module")
def server(server: ApiServer) -> ApiServer:
    """With a node that has GPUs."""
    node = {"apiVersion": "v1", "kind": "Node", "metadata": {"name": NODE}}
    has = {"cpu": "8", "memory": "8Gi", "pods": "10", GPU: "4"}
    status = {
        "conditions": [{"type": "Ready", "status": "True", "reason": "KubeletReady", "message": ""}],
        "capacity": has,
        "allocatable": has,
    }

    async def add_node() -> None:
        async with connected(server) as hollow:
            await hollow.client.create(NODES, node)
            await hollow.client.patch(NODES, NODE, {"status": status}, subresource="status")

    asyncio.run(add_node())
    return server


def only_workers(manager: Manager) -> None:
    add_indexes(manager.cache)
    add_workers(manager, Clock(), PodOptions(IMAGE, agent=None))


@pytest.fixture
async def lab(server: ApiServer) -> AsyncIterator[Lab]:
    async with connected(server) as hollow, controllers(server, register=only_workers):
        yield Lab(hollow.client)


async def test_check_s_worker_gets_its_pod_lease_and_rights(lab: Lab) -> None:
    namespace = {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": "lab"}}
    await lab.client.create(NAMESPACES, namespace)
    await lab.check("plain", namespace="lab")
    pod = await lab.pod("plain-check-0-1", "lab")
    (container,) = pod["spec"]["containers"]
    assert container["image"] == IMAGE and container["resources"]["limits"] == {GPU: "4"}
    assert pod["metadata"]["labels"][names.LABEL_CHECK] == "plain"
    lease = await lab.client.get(LEASES, "plain-check-0", "lab")
    assert lease["metadata"]["labels"][names.LABEL_CHECK] == "plain"
    check = await lab.client.get(NODECHECKS, "plain", "lab")
    account = f"dlr-{check['metadata']['uid']}"
    assert pod["spec"]["serviceAccountName"] == account
    for resource, name in (
        *((kind, account) for kind in (SERVICEACCOUNTS, ROLES, ROLEBINDINGS)),
        (SECRETS, f"dlr-key-{check['metadata']['uid']}"),
    ):
        found = await lab.client.get(resource, name, "lab")
        assert [owner["name"] for owner in found["metadata"]["ownerReferences"]] == ["plain"]
        assert found["metadata"]["labels"][names.LABEL_CHECK] == "plain"
    binding = await lab.client.get(ROLEBINDINGS, account, "lab")
    assert binding["subjects"] == [{"kind": "ServiceAccount", "name": account, "namespace": "lab"}]


async def test_check_s_pod_that_ended_is_told_and_not_replaced(lab: Lab) -> None:
    await lab.check("once")
    await lab.pod("once-check-0-1")
    await lab.pod_status("once-check-0-1", {"phase": "Failed", "reason": "Evicted", "message": "low on disk"})
    status = await lab.until_status("once-check-0", phase="Failed")
    assert (status["lastExit"]["exitClass"], status["lastExit"]["incarnation"]) == ("Preempted", 1)
    await lab.delete_pod("once-check-0-1")
    await lab.check("other")  # which the reconciler comes to after the deletion of the first one's Pod
    await lab.pod("other-check-0-1")
    assert (await lab.worker_status("once-check-0"))["lastExit"]["exitClass"] == "Preempted"
    with pytest.raises(NotFound):
        await lab.client.get(PODS, "once-check-0-1", NAMESPACE)


async def test_refused_pod_is_told_in_the_worker_s_condition_and_on_the_check(lab: Lab) -> None:
    broken = {"spec": {"containers": [{"name": "main", "image": "x", "imagePullPolicy": "Maybe"}]}}
    await lab.check("refused", template=broken)

    async def told() -> dict[str, Any] | None:
        conditions = (await lab.worker_status("refused-check-0")).get("conditions", ())
        return next((c for c in conditions if c["type"] == "Scheduled"), None)

    condition = await lab.until("the condition", told)
    assert (condition["status"], condition["reason"]) == ("False", "PodRefused")
    assert "refused-check-0-1 was refused" in condition["message"]

    async def event() -> bool:
        events = (await lab.client.list(EVENTS, NAMESPACE))["items"]
        told = [(e["involvedObject"]["kind"], e["involvedObject"]["name"], e["reason"]) for e in events]
        return ("NodeCheck", "refused", "PodRefused") in told

    await lab.until("the Event", event)


async def test_unschedulable_pod_says_why_in_the_worker_s_condition(lab: Lab) -> None:
    await lab.check("waiting")
    await lab.pod("waiting-check-0-1")
    why = "0/1 nodes are available: 1 Insufficient nvidia.com/gpu."
    unscheduled = {"type": "PodScheduled", "status": "False", "reason": "Unschedulable", "message": why}
    await lab.pod_status("waiting-check-0-1", {"phase": "Pending", "conditions": [unscheduled]})
    status = await lab.until_status("waiting-check-0", message=why)
    (condition,) = status["conditions"]
    assert (condition["type"], condition["status"], condition["reason"], condition["message"]) == (
        "Scheduled",
        "False",
        "Unschedulable",
        why,
    )


@pytest.mark.parametrize("phase", ["Succeeded", "Failed"])
async def test_when_the_check_has_finished_ended_pods_stay_and_those_that_never_started_go(
    lab: Lab, phase: str
) -> None:
    ended, stuck = f"ended-{phase.lower()}", f"stuck-{phase.lower()}"
    for name in (ended, stuck):
        await lab.check(name)
        await lab.pod(f"{name}-check-0-1")
    await lab.pod_status(f"{ended}-check-0-1", {"phase": "Succeeded"})
    await lab.until_status(f"{ended}-check-0", phase="Succeeded")
    for name in (ended, stuck):
        await lab.finish(name, phase)
    await lab.until("the one that never started to go", lambda: lab.gone(f"{stuck}-check-0-1"))

    async def noticed() -> dict[str, Any] | None:
        status = await lab.worker_status(f"{stuck}-check-0")
        return status if "podName" not in status else None

    status = await lab.until("the deletion to be noticed", noticed)
    assert status["phase"] == "Pending" and "lastExit" not in status
    assert await lab.gone(f"{stuck}-check-0-1"), "it was made again"
    assert not await lab.gone(f"{ended}-check-0-1")


async def test_pod_on_a_faulty_node_is_replaced_elsewhere_and_counted_once(lab: Lab) -> None:
    bound = {"nodeName": NODE, "containers": [{"name": "main", "image": "x"}]}  # nobody schedules here
    await lab.submit("moved", replicas=1, worker={"template": {"spec": bound}})
    job = await lab.client.get(ELASTICJOBS, "moved", NAMESPACE)
    spec = {"jobName": "moved", "type": "worker", "index": 0}
    await lab.worker("moved-worker-0", job, spec, {names.LABEL_MANAGED_BY: names.MANAGER})
    await lab.pod("moved-worker-0-1")
    await lab.until_status("moved-worker-0", nodeName=NODE)
    off = {"spec": {"incarnation": 2, "faultyNodes": [NODE]}}
    await lab.client.patch(ELASTICWORKERS, "moved-worker-0", off, NAMESPACE)
    pod = await lab.pod("moved-worker-0-2")
    required = pod["spec"]["affinity"]["nodeAffinity"]["requiredDuringSchedulingIgnoredDuringExecution"]
    field = {"key": "metadata.name", "operator": "NotIn", "values": [NODE]}
    assert required["nodeSelectorTerms"] == [{"matchFields": [field]}]
    await lab.until_status("moved-worker-0", observedIncarnation=2, restarts={"CheckFailed": 1})
    await lab.until("the first Pod to go", lambda: lab.gone("moved-worker-0-1"))
    await lab.delete_pod("moved-worker-0-2")
    status = await lab.until_status("moved-worker-0", phase="Failed")
    assert status["restarts"] == {"CheckFailed": 1, "Killed": 1}
