"""Who may do what: tokens bound to Pods, RBAC."""

from __future__ import annotations

from typing import Any

import pytest

from controller.resources import PODS

from .accounts import POD_NAME_EXTRA, Accounts
from .objects import unschedulable_pod
from .rawapi import Api
from .resources import SELF_REVIEWS
from .waiting import eventually

pytestmark = pytest.mark.real

JSON = dict[str, Any]


async def test_a_token_bound_to_a_pod_carries_its_name_and_dies_with_it(api: Api, accounts: Accounts) -> None:
    namespace = accounts.namespace
    await accounts.token("worker")
    pod = unschedulable_pod(namespace, "p", serviceAccountName="worker")
    made = (await api.create(PODS, pod)).expect(201)
    reference = {"apiVersion": "v1", "kind": "Pod", "name": "p", "uid": made["metadata"]["uid"]}
    bearer = api.as_token(await accounts.token("worker", boundObjectRef=reference))
    review = {"apiVersion": "authentication.k8s.io/v1", "kind": "SelfSubjectReview"}
    user = (await bearer.call("POST", SELF_REVIEWS.path(), body=review)).expect(201)["status"]["userInfo"]
    assert user["extra"][POD_NAME_EXTRA] == ["p"]
    assert user["extra"]["authentication.kubernetes.io/pod-uid"] == [made["metadata"]["uid"]]
    await api.delete(PODS, namespace, "p")
    await eventually(
        lambda: bearer.call("POST", SELF_REVIEWS.path(), body=review), until=lambda reply: reply.status == 401
    )
