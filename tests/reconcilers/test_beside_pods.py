"""What a job has beside its Pods: its disruption budget, its network policy, and the PodGroup of its gang."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from controller.errors import Forbidden, NotFound
from controller.resources import NETWORKPOLICIES, PODDISRUPTIONBUDGETS, PODS, Resource
from crds import names
from reconcilers.observed.builder import owner_reference
from reconcilers.runtime.kinds import (
    COSCHEDULING_PODGROUPS,
    ELASTICJOBS,
    ELASTICWORKERS,
    NODECHECKS,
    VOLCANO_PODGROUPS,
)
from reconcilers.worker.companions import network_policy_of
from tests.reconcilers.api import NAMESPACE, Write
from tests.reconcilers.played import Played

pytestmark = pytest.mark.played

Json = dict[str, Any]

DEPLOYMENT = Path(__file__).parents[2] / "deploy/controller/deployment.yaml"
COSCHEDULING: Json = {"schedulingPolicy": {"gang": "coscheduling"}}
VOLCANO: Json = {"schedulingPolicy": {"gang": "volcano"}}
SPARES_ONE: Json = {"replicas": 3, "worker": {"minReplicas": 2}}
"""A job with a disruption budget."""


class Town(Played):
    """Plays users, cluster administrators and kubelets."""

    async def find(self, resource: Resource, name: str) -> Json | None:
        try:
            return await self.client.get(resource, name, NAMESPACE)
        except NotFound:
            return None

    async def until_gone(self, resource: Resource, name: str) -> None:
        async def gone() -> bool:
            return await self.find(resource, name) is None

        await self.until(f"{resource.kind} {name} to go", gone)

    async def until_spec(self, resource: Resource, name: str, **expected: Any) -> Json:
        async def check() -> Json | None:
            found = await self.client.get(resource, name, NAMESPACE)
            return found if expected.items() <= found["spec"].items() else None

        return await self.until(f"{resource.kind} {name} with {expected}", check)

    async def edit(self, job: str, **spec: Any) -> None:
        await self.client.patch(ELASTICJOBS, job, {"spec": spec}, NAMESPACE)

    async def finish(self, job: str) -> None:
        patch = {"status": {"phase": "Succeeded"}}
        await self.client.patch(ELASTICJOBS, job, patch, NAMESPACE, subresource="status")

    async def until_pods(self, job: str, count: int) -> list[Json]:
        async def check() -> tuple[list[Json]] | None:
            selector = f"{names.LABEL_JOB}={job}"
            found = (await self.client.list(PODS, NAMESPACE, label_selector=selector))["items"]
            return (found,) if len(found) == count else None

        (pods,) = await self.until(f"{count} Pods of {job}", check)
        return list(pods)


@pytest.fixture
async def town() -> AsyncIterator[Town]:
    each = Town()
    each.begin()
    yield each
    each.end()


async def test_budget_follows_the_minimum(town: Town) -> None:
    await town.submit("follows", replicas=4, worker={"minReplicas": 2})
    budget = await town.until_spec(PODDISRUPTIONBUDGETS, "follows", minAvailable=2)
    selector = {names.LABEL_JOB: "follows", names.LABEL_TYPE: "worker"}
    assert budget["spec"]["selector"] == {"matchLabels": selector}
    await town.edit("follows", replicaSpecs={"worker": {"minReplicas": 3}})
    await town.until_spec(PODDISRUPTIONBUDGETS, "follows", minAvailable=3)
    await town.edit("follows", replicaSpecs={"worker": {"minReplicas": None, "replicas": 6}})
    await town.until_gone(PODDISRUPTIONBUDGETS, "follows")
    await town.edit("follows", replicaSpecs={"worker": {"standby": 1}})
    await town.until_spec(PODDISRUPTIONBUDGETS, "follows", minAvailable=6)
    await town.edit("follows", replicaSpecs={"worker": {"replicas": 0}})
    await town.until_gone(PODDISRUPTIONBUDGETS, "follows")


async def test_budget_that_was_deleted_or_changed_by_hand_comes_back(town: Town) -> None:
    await town.submit("stubborn", **SPARES_ONE)
    await town.until_spec(PODDISRUPTIONBUDGETS, "stubborn", minAvailable=2)
    await town.client.delete(PODDISRUPTIONBUDGETS, "stubborn", NAMESPACE)
    await town.until_spec(PODDISRUPTIONBUDGETS, "stubborn", minAvailable=2)
    everything = {"minAvailable": 0, "selector": {"matchExpressions": [{"key": "a", "operator": "Exists"}]}}
    await town.client.patch(PODDISRUPTIONBUDGETS, "stubborn", {"spec": everything}, NAMESPACE)
    selector = {"matchLabels": {names.LABEL_JOB: "stubborn", names.LABEL_TYPE: "worker"}}
    await town.until_spec(PODDISRUPTIONBUDGETS, "stubborn", minAvailable=2, selector=selector)
    unmarked = {"metadata": {"labels": {names.LABEL_MANAGED_BY: None}}, "spec": {"minAvailable": 1}}
    await town.client.patch(PODDISRUPTIONBUDGETS, "stubborn", unmarked, NAMESPACE)
    budget = await town.until_spec(PODDISRUPTIONBUDGETS, "stubborn", minAvailable=2)
    assert budget["metadata"]["labels"][names.LABEL_MANAGED_BY] == names.MANAGER


async def test_suspended_or_finished_job_has_no_budget(town: Town) -> None:
    await town.submit("pausing", suspend=True, **SPARES_ONE)
    await town.phase("pausing", "Suspended")
    assert await town.find(PODDISRUPTIONBUDGETS, "pausing") is None
    await town.edit("pausing", suspend=False)
    await town.until_spec(PODDISRUPTIONBUDGETS, "pausing", minAvailable=2)
    await town.edit("pausing", suspend=True)
    await town.until_gone(PODDISRUPTIONBUDGETS, "pausing")
    await town.edit("pausing", suspend=False)
    await town.until_spec(PODDISRUPTIONBUDGETS, "pausing", minAvailable=2)
    await town.finish("pausing")
    await town.until_gone(PODDISRUPTIONBUDGETS, "pausing")


async def test_pods_of_a_job_are_reached_by_each_other_alone_as_long_as_the_job_is_there(town: Town) -> None:
    await town.submit("fenced")
    name = f"dlr-{(await town.client.get(ELASTICJOBS, 'fenced', NAMESPACE))['metadata']['uid']}"
    pods = {"podSelector": {"matchLabels": {names.LABEL_JOB: "fenced"}}}
    fence = {**pods, "policyTypes": ["Ingress"], "ingress": [{"from": [pods]}]}
    policy = await town.until_spec(NETWORKPOLICIES, name)
    assert policy["spec"] == fence
    await town.client.delete(NETWORKPOLICIES, name, NAMESPACE)
    await town.until_spec(NETWORKPOLICIES, name, **fence)
    await town.client.patch(NETWORKPOLICIES, name, {"spec": {"ingress": [{}]}}, NAMESPACE)
    await town.until_spec(NETWORKPOLICIES, name, **fence)
    await town.edit("fenced", suspend=True)
    await town.phase("fenced", "Suspended")
    assert await town.find(NETWORKPOLICIES, name), "Pods may still be leaving"
    await town.client.delete(ELASTICJOBS, "fenced", NAMESPACE)
    await town.until_gone(NETWORKPOLICIES, name)


async def test_a_check_with_pods_of_its_own_has_a_policy_and_one_of_a_job_has_none(town: Town) -> None:
    checks = {}
    for name, spec in (("of-job", {"jobName": "any"}), ("of-nodes", {"nodes": ["node-0"]})):
        check = {"apiVersion": NODECHECKS.api_version, "kind": NODECHECKS.kind, "spec": spec}
        metadata = {"name": name, "namespace": NAMESPACE}
        checks[name] = await town.client.create(NODECHECKS, check | {"metadata": metadata})
    name = f"dlr-{checks['of-nodes']['metadata']['uid']}"
    policy = await town.until_spec(NETWORKPOLICIES, name)
    assert policy["spec"]["podSelector"] == {"matchLabels": {names.LABEL_CHECK: "of-nodes"}}
    assert [owner["kind"] for owner in policy["metadata"]["ownerReferences"]] == ["NodeCheck"]
    assert await town.find(NETWORKPOLICIES, f"dlr-{checks['of-job']['metadata']['uid']}") is None
    await town.client.delete(NODECHECKS, "of-nodes", NAMESPACE)
    await town.until_gone(NETWORKPOLICIES, name)


async def test_network_policy_is_switched_off_and_on(town: Town) -> None:
    await town.submit("open", networkPolicy={"enabled": False}, **SPARES_ONE)
    name = f"dlr-{(await town.client.get(ELASTICJOBS, 'open', NAMESPACE))['metadata']['uid']}"
    await town.until_spec(PODDISRUPTIONBUDGETS, "open", minAvailable=2)
    assert await town.find(NETWORKPOLICIES, name) is None
    await town.edit("open", networkPolicy={"enabled": True})
    await town.until_spec(NETWORKPOLICIES, name)
    await town.edit("open", networkPolicy={"enabled": False})
    await town.until_gone(NETWORKPOLICIES, name)


async def test_budget_of_somebody_else_is_left_alone_and_told(town: Town) -> None:
    metadata = {"name": "foreign", "namespace": NAMESPACE}
    foreign = {"apiVersion": "policy/v1", "kind": "PodDisruptionBudget", "metadata": metadata}
    selector = {"matchLabels": {"app": "web"}}
    await town.client.create(
        PODDISRUPTIONBUDGETS, foreign | {"spec": {"minAvailable": 7, "selector": selector}}
    )
    await town.submit("foreign", **SPARES_ONE)
    assert "not this job's" in await town.event("foreign", "PodDisruptionBudgetRefused")
    found = await town.client.get(PODDISRUPTIONBUDGETS, "foreign", NAMESPACE)
    assert found["spec"] == {"minAvailable": 7, "selector": selector}
    await town.until_pods("foreign", 3)
    await town.client.delete(PODDISRUPTIONBUDGETS, "foreign", NAMESPACE)
    await town.until_spec(PODDISRUPTIONBUDGETS, "foreign", minAvailable=2)


async def test_a_policy_that_is_refused_is_told_and_the_budget_does_not_wait_for_it(town: Town) -> None:
    def refuse(write: Write) -> None:
        if write.resource == NETWORKPOLICIES:
            raise Forbidden(403, "Forbidden", "exceeded quota: networkpolicies")

    town.begin().before_write = refuse
    await town.submit("fenced", **SPARES_ONE)
    assert "exceeded quota" in await town.event("fenced", "NetworkPolicyRefused")
    await town.until_spec(PODDISRUPTIONBUDGETS, "fenced", minAvailable=2)


async def test_budget_that_an_earlier_job_has_left_is_replaced(
    town: Town, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The cache does not show it, and garbage collection has yet to come."""
    monkeypatch.setattr(town.api, "collect_garbage", lambda: None)
    left = owner_reference("ElasticJob", "again", "earlier")
    metadata = {"name": "again", "namespace": NAMESPACE, "ownerReferences": [left]}
    town.api.create(PODDISRUPTIONBUDGETS, {"metadata": metadata, "spec": {"minAvailable": 7}})
    await town.submit("again", **SPARES_ONE)
    budget = await town.until_spec(PODDISRUPTIONBUDGETS, "again", minAvailable=2)
    assert [owner["uid"] for owner in budget["metadata"]["ownerReferences"]] != ["earlier"]
    assert town.api.seconds == 0 and "PodDisruptionBudgetRefused" not in {e.reason for e in town.api.events}


def test_the_controller_may_connect_to_the_agents_of_jobs_and_nobody_else_of_its_namespace() -> None:
    job, check = (
        {"kind": kind, "metadata": {"name": "d", "namespace": "n", "uid": "u"}}
        for kind in ("ElasticJob", "NodeCheck")
    )
    (rule,) = network_policy_of(job, "dlr-system")["spec"]["ingress"]
    (deployment,) = [
        each for each in yaml.safe_load_all(DEPLOYMENT.read_text()) if each["kind"] == "Deployment"
    ]
    (controller,) = [each for each in rule["from"] if "namespaceSelector" in each]
    assert controller["namespaceSelector"] == {"matchLabels": {"kubernetes.io/metadata.name": "dlr-system"}}
    of_pods = deployment["spec"]["template"]["metadata"]["labels"]
    assert controller["podSelector"]["matchLabels"].items() <= of_pods.items()
    assert network_policy_of(check, "dlr-system") == network_policy_of(check)


@pytest.mark.parametrize(
    ("policy", "resource"), [(COSCHEDULING, COSCHEDULING_PODGROUPS), (VOLCANO, VOLCANO_PODGROUPS)]
)
async def test_podgroup_is_there_before_the_pods_and_follows_the_minimum(
    town: Town, policy: Json, resource: Resource
) -> None:
    name = f"gang-{policy['schedulingPolicy']['gang']}"
    await town.submit(name, replicas=4, worker={"minReplicas": 3}, **policy)
    pods = await town.until_pods(name, 4)
    group = await town.client.get(resource, name, NAMESPACE)
    assert group["spec"]["minMember"] == 3
    version = int(group["metadata"]["resourceVersion"])
    assert all(version < int(pod["metadata"]["resourceVersion"]) for pod in pods)
    marks = {**pods[0]["metadata"]["labels"], **pods[0]["metadata"]["annotations"]}
    assert name in (marks.get("scheduling.x-k8s.io/pod-group"), marks.get("scheduling.k8s.io/group-name"))
    await town.edit(name, replicaSpecs={"worker": {"minReplicas": 2}})
    await town.until_spec(resource, name, minMember=2)
    await town.edit(name, suspend=True)
    await town.until_gone(resource, name)
    await town.until_pods(name, 0)
    await town.edit(name, suspend=False)
    await town.until_pods(name, 4)
    await town.until_spec(resource, name, minMember=2)
    await town.finish(name)
    await town.until_gone(resource, name)


async def test_what_the_scheduler_says_of_the_group_stays(town: Town) -> None:
    await town.submit("filled", replicas=2, **VOLCANO)
    await town.until_spec(VOLCANO_PODGROUPS, "filled", minMember=2)
    town.api.patch(VOLCANO_PODGROUPS, "filled", {"spec": {"queue": "default"}})
    await town.edit("filled", replicaSpecs={"worker": {"replicas": 3}})
    group = await town.until_spec(VOLCANO_PODGROUPS, "filled", minMember=3)
    assert group["spec"]["queue"] == "default"


async def test_cluster_without_podgroups_makes_no_pods_and_says_why_until_it_has_them(town: Town) -> None:
    town.api.unserved |= {COSCHEDULING_PODGROUPS}
    await town.submit("missing", **SPARES_ONE, **COSCHEDULING)
    message = await town.warning("missing", "WorkersUnscheduled", "GangUnavailable")
    assert "podgroups.scheduling.x-k8s.io" in message and "install scheduler-plugins" in message
    assert "cannot be scheduled" in await town.event("missing", "GangUnavailable")
    assert await town.pods("missing") == []
    (condition,) = (await town.client.get(ELASTICWORKERS, "missing-worker-0", NAMESPACE))["status"][
        "conditions"
    ]
    assert (condition["type"], condition["status"]) == ("Scheduled", "False")
    assert await town.find(PODDISRUPTIONBUDGETS, "missing"), "one does not wait for the other"
    town.api.unserved -= {COSCHEDULING_PODGROUPS}
    await town.until_pods("missing", 3)


async def test_pods_wait_for_the_podgroup_to_be_the_jobs_own(town: Town) -> None:
    foreign = {"metadata": {"name": "taken"}, "spec": {"minMember": 1}}
    await town.client.create(COSCHEDULING_PODGROUPS, foreign)
    await town.submit("taken", **COSCHEDULING)
    assert "belongs to somebody else" in await town.warning("taken", "WorkersUnscheduled", "PodGroupTaken")
    assert "not this job's" in await town.event("taken", "PodGroupRefused")
    assert await town.pods("taken") == []
    await town.client.delete(COSCHEDULING_PODGROUPS, "taken", NAMESPACE)
    await town.until_pods("taken", 2)
    await town.until_spec(COSCHEDULING_PODGROUPS, "taken", minMember=2)
