"""Who may do what: tokens bound to Pods, RBAC."""

from __future__ import annotations

from typing import Any

import pytest

from controller.resources import PODS

from .accounts import POD_NAME_EXTRA, Accounts, rule
from .conftest import Maker
from .objects import unschedulable_pod
from .rawapi import Api
from .resources import SELF_REVIEWS, WIDGETS
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


async def test_a_role_allows_exactly_its_verbs(api: Api, accounts: Accounts, make: Maker) -> None:
    bearer = api.as_token(await accounts.token("reader"))
    await make.widget()
    await accounts.allow("reader", rule(WIDGETS.group, WIDGETS.plural, "get list watch"))
    await accounts.becomes(bearer, 200, WIDGETS)
    namespace = accounts.namespace
    (await bearer.get(WIDGETS, namespace, "w")).expect(200)
    async with bearer.watch(WIDGETS, namespace) as watch:
        await watch.until(lambda event: event["object"]["metadata"].get("name") == "w")
    status = (await bearer.patch(WIDGETS, namespace, "w", {"spec": {"size": 4}})).refused(403, "Forbidden")
    assert f'cannot patch resource "{WIDGETS.plural}"' in status["message"]
    (await bearer.delete(WIDGETS, namespace, "w")).refused(403, "Forbidden")
    reply = await bearer.patch(WIDGETS, namespace, "w", {"status": {"phase": "x"}}, sub="status")
    assert f'cannot patch resource "{WIDGETS.plural}/status"' in reply.refused(403, "Forbidden")["message"]
    (await bearer.list(WIDGETS, "default")).refused(403, "Forbidden")
    (await bearer.list(WIDGETS)).refused(403, "Forbidden")
    (await bearer.call("DELETE", WIDGETS.path(namespace))).refused(403, "Forbidden")
    (await bearer.list(PODS, namespace)).refused(403, "Forbidden")
