"""What no server can be made to do at will, in the making of a job's PodDisruptionBudget."""

from __future__ import annotations

import json
from typing import Any, ClassVar, cast

import pytest
from kubernetes import client

from controller.cache import Cache
from controller.client import Client
from controller.errors import AlreadyExists, Forbidden
from controller.events import EventRecorder
from controller.reconciler import Request
from controller.resources import NETWORKPOLICIES, Resource
from crds.elasticjob import ElasticJob
from reconcilers.observed.builder import check_labels, labels
from reconcilers.runtime.kinds import ELASTICJOBS
from reconcilers.worker.companions import CompanionReconciler, budget_of, network_policy_of
from tests.reconcilers.api import merged
from tests.reconcilers.build import job

JOB = job(replicas=2, worker={"minReplicas": 1}, networkPolicy={"enabled": False})
RAW = {"kind": "ElasticJob", **JOB.to_wire()}


class Store:
    def __init__(self, raw: dict[str, Any] | None) -> None:
        self._raw = raw

    def get(self, namespace: str, name: str) -> dict[str, Any] | None:
        return self._raw


class Stores:
    """The job is known; of budgets, none that has our label."""

    def store(self, resource: object) -> Store:
        return Store(RAW if resource == ELASTICJOBS else None)

    def models(self, *_: object) -> Stores:
        return self

    def parse(self, _: object) -> ElasticJob:
        return JOB


class Told:
    def __init__(self) -> None:
        self.reasons: list[str] = []

    def event(self, obj: object, type_: str, reason: str, message: str) -> None:
        self.reasons.append(reason)


async def test_a_policy_that_is_refused_is_told_and_the_budget_does_not_wait_for_it() -> None:
    class NoPolicies:
        made: ClassVar[list[str]] = []

        async def create(self, resource: Resource, obj: dict[str, Any]) -> None:
            if resource is NETWORKPOLICIES:
                raise Forbidden(403, "Forbidden", "exceeded quota: networkpolicies")
            self.made.append(resource.kind)

    fenced, told = job(replicas=2, worker={"minReplicas": 1}), Told()

    class Fenced(Stores):
        def parse(self, _: object) -> ElasticJob:
            return fenced

    reconciler = CompanionReconciler(
        cast("Client", NoPolicies()), cast("Cache", Fenced()), cast("EventRecorder", told)
    )
    with pytest.raises(Forbidden):
        await reconciler.reconcile(Request(JOB.metadata.namespace, JOB.metadata.name))
    assert (told.reasons, NoPolicies.made) == (["NetworkPolicyRefused"], ["PodDisruptionBudget"])


@pytest.mark.parametrize("kind", ["ElasticJob", "NodeCheck"])
def test_policy_admits_the_pods_of_its_owner_alone_and_has_fields_that_kubernetes_knows(kind: str) -> None:
    owner = {"kind": kind, "metadata": {"name": "digits", "namespace": "default", "uid": "u"}}
    policy = network_policy_of(owner)
    api = client.ApiClient()
    read = api.deserialize(json.dumps(policy), "V1NetworkPolicy", "application/json")
    assert api.sanitize_for_serialization(read) == policy
    of_pods = labels("digits", "worker", 0) if kind == "ElasticJob" else check_labels("digits", 0)
    of_others = check_labels("digits", 0) if kind == "ElasticJob" else labels("digits", "worker", 0)
    ((peer,),) = ([from_["podSelector"] for from_ in rule["from"]] for rule in policy["spec"]["ingress"])
    for selector in (policy["spec"]["podSelector"], peer):
        assert selector["matchLabels"].items() <= of_pods.items()
        assert not selector["matchLabels"].items() <= of_others.items()


class WithLeftover:
    """An earlier job of the name has left a budget, which the cache does not show."""

    def __init__(self) -> None:
        self.budget: dict[str, Any] = merged(budget_of(JOB) or {}, {"metadata": {"uid": "left"}})
        self.budget["metadata"]["ownerReferences"] = [
            owner | {"uid": "earlier"} for owner in self.budget["metadata"]["ownerReferences"]
        ]

    async def create(self, resource: object, obj: dict[str, Any]) -> dict[str, Any]:
        if self.budget:
            raise AlreadyExists(409, "AlreadyExists", "there is one")
        self.budget = obj
        return obj

    async def get(self, resource: object, name: str, namespace: str, **_: object) -> dict[str, Any]:
        return self.budget

    async def delete(self, resource: object, name: str, namespace: str, *, uid: str) -> None:
        assert uid == "left"
        self.budget = {}


async def test_budget_that_an_earlier_job_has_left_is_replaced_in_the_same_look() -> None:
    client = WithLeftover()
    reconciler = CompanionReconciler(
        cast("Client", client), cast("Cache", Stores()), cast("EventRecorder", None)
    )
    await reconciler.reconcile(Request(JOB.metadata.namespace, JOB.metadata.name))
    assert client.budget == budget_of(JOB)
