"""What only a real API server shows of the reconcilers: namespaces that end, refused templates, odd names.

Nobody runs the Pods: the tests play kubelets and agents.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from controller.errors import NotFound
from controller.resources import EVENTS, NAMESPACES, NODES, PODS, ROLEBINDINGS, SERVICEACCOUNTS, Resource
from reconcilers.failure import refusal
from reconcilers.runtime.kinds import ELASTICJOBS, NODECHECKS
from tests.reconcilers.cluster import NAMESPACE, Hollow

pytestmark = pytest.mark.real

JSON = dict[str, Any]
TEMPLATE = "spec.replicaSpecs.worker.template"


def template(container: JSON | None = None, spec: JSON | None = None, **more: Any) -> JSON:
    main = {"name": "main", "image": "x"} | (container or {})
    return {"spec": {"containers": [main]} | (spec or {})} | more


def worker(**fields: Any) -> JSON:
    return {"worker": {"template": template()} | fields}


async def condition(hollow: Hollow, resource: Resource, name: str, type_: str, reason: str) -> JSON:
    async def found() -> JSON | None:
        status = (await hollow.client.get(resource, name, NAMESPACE)).get("status", {})
        conditions = status.get("conditions", ())
        return next((c for c in conditions if (c["type"], c["reason"]) == (type_, reason)), None)

    told: JSON = await hollow.until(f"{type_} of {name}: {reason}", found)
    return told


def pod_count(hollow: Hollow, job: str, count: int) -> Callable[[], Any]:
    async def check() -> bool:
        return len(await hollow.pods(job)) == count

    return check


async def test_namespace_that_is_deleted_and_made_again_takes_a_job_at_once(hollow: Hollow) -> None:
    account = {
        "apiVersion": "v1",
        "kind": "ServiceAccount",
        "metadata": {"name": "trainer", "namespace": "lab"},
    }
    job = {
        "apiVersion": ELASTICJOBS.api_version,
        "kind": "ElasticJob",
        "metadata": {"name": "lab", "namespace": "lab"},
        "spec": {
            "replicaSpecs": worker(replicas=1, template=template(spec={"serviceAccountName": "trainer"}))
        },
    }

    async def gone() -> bool:
        for pod in (await hollow.client.list(PODS, "lab"))["items"]:
            await hollow.client.delete(PODS, pod["metadata"]["name"], "lab", grace_period_seconds=0)
        try:
            await hollow.client.get(NAMESPACES, "lab")
        except NotFound:
            return True
        return False

    namespace = {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": "lab"}}
    for life in (1, 2):
        for resource, obj in ((NAMESPACES, namespace), (SERVICEACCOUNTS, account), (ELASTICJOBS, job)):
            await hollow.client.create(resource, obj)
        uid = (await hollow.client.get(ELASTICJOBS, "lab", "lab"))["metadata"]["uid"]
        for resource, name in ((PODS, "lab-worker-0-1"), (ROLEBINDINGS, f"dlr-{uid}-trainer")):
            await hollow.until(
                f"{name}, life {life}", lambda r=resource, n=name: hollow.client.get(r, n, "lab")
            )
        if life == 1:
            await hollow.client.delete(NAMESPACES, "lab")
            await hollow.until("the namespace to go", gone)
    events = (await hollow.client.list(EVENTS))["items"]
    assert [e["message"] for e in events if "Refused" in e["reason"]] == []


REFUSED_PODS: list[tuple[JSON, str]] = [
    *((broken, f"{TEMPLATE}.{sentence}") for broken, sentence in (
        (template({"comand": ["sleep", "1"]}), "spec.containers[0].comand: unknown field"),
        (template({"env": [{"name": "A", "valueFrom": {"secretRef": {"name": "s"}}}]}),
         "spec.containers[0].env[0].valueFrom.secretRef: unknown field"),
        (template({"volumeMounts": [{"name": "data", "mountPath": "/data"}]}),
         "spec.containers[0].volumeMounts[0].name: Not found"),
        (template(spec={"initContainers": [{"name": "main", "image": "x"}]}),
         "spec.initContainers[0].name: Duplicate"),
        (template(spec={"restartPolicy": "Sometimes"}), "spec.restartPolicy"),
        (template(metadata={"labels": {"a": "b c"}}), "metadata.labels"),
    )),
    (template(spec={"priorityClassName": "urgent"}), "no PriorityClass with name urgent"),
    (template(spec={"serviceAccountName": "mine"}), 'serviceaccount "mine" not found'),
    (template({"ports": [{"containerPort": 1, "protocol": "x"}]}), "containers[0].ports[0].protocol"),
]  # fmt: skip


async def refusal_of(hollow: Hollow, name: str) -> str | None:
    """Why the job's Pods are not made, as its status says."""
    warnings = ((await hollow.status(name)) or {}).get("warnings") or ()
    return next((each["message"] for each in warnings if each["type"] == refusal.PODS_NOT_ACCEPTED), None)


async def test_templates_that_the_api_server_refuses_are_told_on_the_job_and_right_ones_are_made_at_once(
    hollow: Hollow,
) -> None:
    nothing = dict.fromkeys(("env", "command", "args", "resources", "volumeMounts"))
    empty = dict.fromkeys(("initContainers", "volumes", "tolerations", "nodeSelector", "affinity"))
    await hollow.submit("nulls", worker={"template": template(nothing, empty, metadata=None)})
    for number, (broken, _) in enumerate(REFUSED_PODS):
        await hollow.submit(f"broken-{number}", worker={"template": broken})
    for number, (_, sentence) in enumerate(REFUSED_PODS):
        message = await hollow.until("the refusal", lambda name=f"broken-{number}": refusal_of(hollow, name))
        assert sentence in message
        assert f"within {refusal.FAIL_AFTER_SECONDS:g} s; after that it fails" in message
        assert not await hollow.pods(f"broken-{number}")
    right = {"replicas": 2, "template": template({"resources": {"limits": {"cpu": "1m"}}})}
    await hollow.client.patch(
        ELASTICJOBS, "broken-0", {"spec": {"replicaSpecs": {"worker": right}}}, NAMESPACE
    )
    for taken in ("broken-0", "nulls"):
        await hollow.until(f"the Pods of {taken}", pod_count(hollow, taken, 2))


async def test_check_of_what_can_be_no_name_or_label_is_refused_and_not_waited_for(hollow: Hollow) -> None:
    """Some of these mean something else to the server, which then has it."""
    node = {"metadata": {"name": "named", "labels": {"pool": "a", "spot": "yes"}}}
    await hollow.client.create(NODES, {"apiVersion": "v1", "kind": "Node"} | node)
    cases: list[tuple[JSON, str]] = [
        ({"nodeSelector": {"pool": "two words"}}, "NoNodes"),
        ({"nodeSelector": {"pool": "a,spot"}}, "NoNodes"),
        ({"nodeSelector": {"no": "such"}}, "NoNodes"),
        *(({"nodes": [name]}, "NodeNotFound") for name in ("", ".", "..", "nowhere")),
        *(({"jobName": name}, "JobNotFound") for name in ("", ".", "..", "nobody")),
    ]
    for number, (spec, _) in enumerate(cases):
        check = {"apiVersion": NODECHECKS.api_version, "kind": NODECHECKS.kind, "spec": spec}
        metadata = {"name": f"nothing-{number}", "namespace": NAMESPACE}
        await hollow.client.create(NODECHECKS, check | {"metadata": metadata})
    for number, (_, reason) in enumerate(cases):
        await condition(hollow, NODECHECKS, f"nothing-{number}", "Failed", reason)
