"""What only a real API server shows of the reconcilers: its schemas, policies, evictions, deletions, watches.

Nobody runs the Pods: the tests play kubelets and agents.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pytest
import yaml

import localcluster
from agent.facts.world import WorldView
from agent.kube.api import ApiClient
from agent.kube.watcher import Watcher
from controller.errors import Invalid, NotFound, Unavailable
from controller.kubeconfig import load_connection
from controller.resources import (
    CRDS,
    EVENTS,
    LEASES,
    NAMESPACES,
    NODES,
    PODS,
    ROLEBINDINGS,
    ROLES,
    SECRETS,
    SERVICEACCOUNTS,
    Resource,
)
from crds import names
from crds.names import ANNOTATION_STACKS
from reconcilers.failure import refusal
from reconcilers.runtime.kinds import ELASTICJOBS, ELASTICWORKERS, NODECHECKS
from tests.reconcilers.cluster import NAMESPACE, ApiServer, Hollow, connected

pytestmark = pytest.mark.real

JSON = dict[str, Any]
TEMPLATE = "spec.replicaSpecs.worker.template"


def template(container: JSON | None = None, spec: JSON | None = None, **more: Any) -> JSON:
    main = {"name": "main", "image": "x"} | (container or {})
    return {"spec": {"containers": [main]} | (spec or {})} | more


def worker(**fields: Any) -> JSON:
    return {"worker": {"template": template()} | fields}


def rules(**rule: Any) -> JSON:
    return {"failurePolicy": {"rules": [rule]}}


async def has_event(hollow: Hollow, name: str, reason: str) -> bool:
    found = (await hollow.client.list(EVENTS, NAMESPACE))["items"]
    return any((e["involvedObject"]["name"], e["reason"]) == (name, reason) for e in found)


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


async def test_a_job_gets_all_that_it_needs_survives_a_lost_pod_and_takes_everything_along(
    hollow: Hollow,
) -> None:
    await hollow.train("whole")
    uid = (await hollow.job("whole"))["metadata"]["uid"]
    kinds = (SERVICEACCOUNTS, ROLES, ROLEBINDINGS, SECRETS, LEASES, ELASTICWORKERS, PODS)

    async def made() -> list[str]:
        of_job = f"{names.LABEL_JOB}=whole"
        listed = [await hollow.client.list(kind, NAMESPACE, label_selector=of_job) for kind in kinds]
        return [each["metadata"]["name"] for found in listed for each in found["items"]]

    workers = ["whole-worker-0", "whole-worker-1"]
    pods = [f"{each}-1" for each in workers]
    assert await made() == [*[f"dlr-{uid}"] * 3, f"dlr-key-{uid}", *workers, *workers, *pods]

    await hollow.delete_pod("whole-worker-0-1")
    await hollow.run_agent("whole-worker-0", incarnation=2)
    assert (await hollow.formed("whole", 2))["incarnations"] == [2, 1]
    await hollow.until("an Event", lambda: has_event(hollow, "whole", "WorldBroken"))

    await hollow.client.delete(ELASTICJOBS, "whole", NAMESPACE)

    async def nothing_left() -> bool:
        for pod in await hollow.pods("whole"):
            await hollow.delete_pod(pod)
        return await made() == []

    await hollow.until("nothing left", nothing_left)


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


MANAGERS = ("multikueue", "Kueue.io/x", "kueue.io/", "/x", "a..io/x", f"a.io/{'x' * 59}")
REFUSED_AT_APPLY: list[tuple[JSON, str]] = [
    (worker(replicas=-1), "spec.replicaSpecs.worker.replicas"),
    (worker(replicas="two"), "spec.replicaSpecs.worker.replicas"),
    (worker(minReplicas=3, maxReplicas=2), "spec.replicaSpecs.worker"),
    (worker(template=None), TEMPLATE),
    (worker(template={"spec": {"containers": []}}), f"{TEMPLATE}.spec.containers"),
    ({"elasticPolicy": {"nodeUnit": 0}}, "spec.elasticPolicy.nodeUnit"),
    ({"elasticPolicy": {"nodeUnit": 4}}, "spec"),
    *((worker(template=broken), f"{TEMPLATE}.{path}") for broken, path in (
        (template({"image": None}), "spec.containers[0].image: Required value"),
        (template({"env": ["A=1"]}), "spec.containers[0].env[0]"),
        (template({"env": [{"value": "x"}]}), "spec.containers[0].env[0].name: Required value"),
        (template({"env": [{"name": "A", "value": 5}]}), "spec.containers[0].env[0].value"),
        (template({"command": "sleep 1"}), "spec.containers[0].command"),
        (template(spec={"initContainers": "x"}), "spec.initContainers"),
        (template(spec={"nodeSelector": {"gpu": True}}), "spec.nodeSelector.gpu"),
        (template(metadata={"labels": "x"}), "metadata.labels"),
    )),
    (rules(action="Ignore", onPodConditions=[]), "a rule needs onExitCodes, onPodConditions or onMessagePattern"),
    (rules(action="Ignore", onMessagePattern="(unclosed"), "onMessagePattern"),
    (rules(action="Ignore", onMessagePattern=r"\\\pL"), "no class of Unicode characters"),
    (rules(action="Ignore", onMessagePattern="a{3,100}"), "counts below 100"),
    (rules(action="Retry", onMessagePattern="x"), "action"),
    (rules(action="Ignore", onExitCodes={"operator": "In", "values": []}), "values"),
    *(({"managedBy": manager}, "spec.managedBy") for manager in MANAGERS),
]  # fmt: skip


async def test_bad_jobs_and_checks_are_refused_with_the_fields_path(server: ApiServer) -> None:
    async with connected(server) as hollow:
        for spec, path in REFUSED_AT_APPLY:
            with pytest.raises(Invalid, match=re.escape(path)):
                await hollow.submit("bad", **spec)
        with pytest.raises(Invalid, match=r"metadata\.name is too long"):
            await hollow.submit("x" * 46)
        metadata = {"name": "hasty", "namespace": NAMESPACE}
        hasty = {"apiVersion": NODECHECKS.api_version, "kind": NODECHECKS.kind, "metadata": metadata}
        with pytest.raises(Invalid, match="ttlSecondsAfterFinished"):
            spec = {"nodes": ["a"], "ttlSecondsAfterFinished": 0}
            await hollow.client.create(NODECHECKS, hasty | {"spec": spec})


async def test_what_may_not_be_edited_is_refused(server: ApiServer) -> None:
    async with connected(server) as hollow:
        client = hollow.client
        await hollow.submit("fixed", managedBy="kueue.x-k8s.io/multikueue")
        await hollow.submit("unset", suspend=True, worker={"minReplicas": 1})
        for name, manager in (("fixed", None), ("fixed", "a.io/b"), ("unset", names.CONTROLLER)):
            with pytest.raises(Invalid, match="managedBy cannot be changed"):
                await client.patch(ELASTICJOBS, name, {"spec": {"managedBy": manager}}, NAMESPACE)
        groups = {"replicaGroups": {"workers": 2, "min": 1}}
        await hollow.submit("groups", 4, elasticPolicy=groups, suspend=True)
        for name, replicas, sentence in (
            ("unset", 0, "replicas must not be less than minReplicas"),
            ("groups", 5, "must be a multiple of elasticPolicy.replicaGroups.workers"),
            ("groups", 0, "replicaGroups.min must not be more than the number of groups"),
        ):
            with pytest.raises(Invalid, match=re.escape(sentence)):
                patch = {"spec": {"replicas": replicas}}
                await client.patch(ELASTICJOBS, name, patch, NAMESPACE, subresource="scale")
        for name, replicas in (("unset", 3), ("groups", 6)):
            patch = {"spec": {"replicas": replicas}}
            await client.patch(ELASTICJOBS, name, patch, NAMESPACE, subresource="scale")
            assert (await hollow.job(name))["spec"]["replicaSpecs"]["worker"]["replicas"] == replicas


async def test_what_a_job_says_of_a_master_or_as_null_is_taken(hollow: Hollow) -> None:
    nothing = dict.fromkeys(("env", "command", "args", "resources", "volumeMounts"))
    empty = dict.fromkeys(("initContainers", "volumes", "tolerations", "nodeSelector", "affinity"))
    await hollow.submit("nulls", worker={"template": template(nothing, empty, metadata=None)})
    masters: list[tuple[str, JSON]] = [
        (
            "dlrover-master",
            {"template": {"spec": {"containers": [{"name": "main", "imagePullPolicy": "Always"}]}}},
        ),
        ("master", {"replicas": 7, "template": {"spec": {"containers": []}}, "restartCount": -1}),
        ("dlrover-master", {"template": {}}),
        ("master", {}),
    ]
    for number, (type_, master) in enumerate(masters):
        name = f"mastered-{number}"
        await hollow.submit(name, replicaSpecs={**worker(replicas=1), type_: master})
        assert (await hollow.job(name))["spec"]["replicaSpecs"][type_] == master
        await hollow.until("its Pod", pod_count(hollow, name, 1))
    await hollow.until("its Pods", pod_count(hollow, "nulls", 2))


REFUSED_PODS: list[tuple[JSON, str]] = [
    *((broken, f"{TEMPLATE}.{sentence}") for broken, sentence in (
        (template({"resources": {"limits": {"cpu": "lots"}}}),
         "spec.containers[0].resources.limits.cpu: 'lots' is no quantity"),
        (template({"comand": ["sleep", "1"]}), "spec.containers[0].comand: unknown field"),
        (template(metadata={"lables": {"a": "b"}}), "metadata.lables: unknown field"),
        (template(sepc={"hostNetwork": True}), "sepc: unknown field"),
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


async def test_templates_that_the_api_server_refuses_are_told_on_the_job_and_a_correction_is_made_at_once(
    hollow: Hollow,
) -> None:
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
    await hollow.until("the corrected job's Pods", pod_count(hollow, "broken-0", 2))


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


async def test_evictions_leave_the_minimum_and_drain_a_job_that_needs_all_its_workers(hollow: Hollow) -> None:
    async def evict(pod: str) -> bool:
        eviction = {
            "apiVersion": "policy/v1",
            "kind": "Eviction",
            "metadata": {"name": pod, "namespace": NAMESPACE},
        }
        try:
            await hollow.client.create(Resource("", "v1", f"pods/{pod}/eviction", "Eviction"), eviction)
        except Unavailable as error:
            assert error.status == 429
            return False
        return True

    await hollow.submit("spares", replicas=3, worker={"minReplicas": 2})
    await hollow.submit("rigid", replicas=2)
    ready = {"phase": "Running", "conditions": [{"type": "Ready", "status": "True"}]}
    for name, count in (("spares", 3), ("rigid", 2)):
        await hollow.until("its Pods", pod_count(hollow, name, count))
        for index in range(count):
            await hollow.pod_status(f"{name}-worker-{index}-1", ready)
    budgets = Resource("policy", "v1", "poddisruptionbudgets", "PodDisruptionBudget")

    async def counts_all() -> bool:
        found = await hollow.client.get(budgets, "spares", NAMESPACE)
        return bool(found.get("status", {}).get("disruptionsAllowed") == 1)

    await hollow.until("its budget", counts_all)
    assert await evict("spares-worker-2-1")
    assert not await evict("spares-worker-1-1")
    for index in (1, 0):  # one restart for all of a node's workers, not one for each
        assert await evict(f"rigid-worker-{index}-1")
    for index in (0, 1):
        name = f"rigid-worker-{index}-2"
        await hollow.until(name, lambda name=name: hollow.client.get(PODS, name, NAMESPACE))


async def test_pods_of_a_gang_wait_until_the_cluster_serves_its_podgroups(
    hollow: Hollow, monkeypatch: pytest.MonkeyPatch
) -> None:
    for module in ("reconciler", "gate"):
        monkeypatch.setattr(f"reconcilers.gang.{module}.UNAVAILABLE_RETRY_SECONDS", 0.5)
    await hollow.submit("gang", schedulingPolicy={"gang": "coscheduling"})
    await hollow.until("an Event", lambda: has_event(hollow, "gang", "GangUnavailable"))
    assert await hollow.pods("gang") == []
    crd = Path(localcluster.__file__).parent / "scheduler" / "pod_groups.yaml"
    await hollow.client.create(CRDS, yaml.safe_load(crd.read_text()))
    await hollow.until("its Pods", pod_count(hollow, "gang", 2))


class CountingWatcher(Watcher[WorldView]):
    """An agent's watcher that counts all events of its watch, those that change nothing too."""

    events = 0

    def feed(self, event: Mapping[str, Any]) -> None:
        self.events += event["type"] != "BOOKMARK"
        super().feed(event)


async def test_edits_of_a_jobs_status_bring_nothing_to_an_agent(hollow: Hollow, server: ApiServer) -> None:
    await hollow.train("quiet")
    api = ApiClient(load_connection(server.kubeconfig))
    watcher = CountingWatcher(
        api, "elasticworlds", NAMESPACE, "quiet", parse=WorldView.parse, missing=WorldView()
    )
    watcher.start()

    async def has_trained() -> bool:
        view = watcher.view()
        return view is not None and view.phase == "Running"

    async def is_asked() -> bool:
        view = watcher.view()
        return view is not None and view.asks_for_stacks == "now"

    await hollow.until("the world", has_trained)
    before = watcher.events
    for number in range(50):
        edit = {
            "message": f"edit {number}",
            "conditions": [],
            "replicaStatuses": {"worker": {"active": number}},
            "rendezvous": {"reason": f"edit {number}"},
            "usage": {"round": number},
        }
        await hollow.client.patch(ELASTICJOBS, "quiet", {"status": edit}, NAMESPACE, subresource="status")
    # What comes next on the watch shows that nothing of the above is still on its way.
    asked = {"metadata": {"annotations": {ANNOTATION_STACKS: "now"}}}
    await hollow.client.patch(ELASTICJOBS, "quiet", asked, NAMESPACE)
    await hollow.until("the question", is_asked)
    assert watcher.events == before + 1
    watcher.stop()
