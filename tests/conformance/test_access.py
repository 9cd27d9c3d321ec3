"""Who may do what: TLS, tokens, service accounts, RBAC, and the policy that holds a worker to its own object."""

from __future__ import annotations

from typing import Any

import pytest

from .accounts import POD_NAME_EXTRA, Accounts, rule
from .backend import Backend
from .conftest import Maker
from .objects import unschedulable_pod
from .rawapi import Api
from .resources import (
    NODES,
    PODS,
    SELF_REVIEWS,
    SERVICEACCOUNTS,
    SUBJECT_ACCESS_REVIEWS,
    TOKEN_REVIEWS,
    WIDGETS,
    Resource,
)
from .waiting import eventually

pytestmark = pytest.mark.real

JSON = dict[str, Any]


async def test_a_token_bound_to_a_pod_carries_its_name_and_dies_with_it(
    api: Api, backend: Backend, accounts: Accounts
) -> None:
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
        lambda: bearer.call("POST", SELF_REVIEWS.path(), body=review),
        within_seconds=backend.patience_seconds,
        until=lambda reply: reply.status == 401,
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


async def test_a_cluster_role_reaches_as_far_as_its_binding(api: Api, accounts: Accounts) -> None:
    here, everywhere = [api.as_token(await accounts.token(name)) for name in ("here", "everywhere")]
    role = await accounts.cluster_role(rule(WIDGETS.group, WIDGETS.plural, "list"), rule("", "nodes", "list"))
    await accounts.bind("here", "ClusterRole", role)
    await accounts.bind_everywhere("everywhere", role)
    await accounts.becomes(here, 200, WIDGETS)
    await accounts.becomes(everywhere, 200, WIDGETS)
    (await here.list(WIDGETS)).refused(403, "Forbidden")
    (await here.list(NODES)).refused(403, "Forbidden")
    (await everywhere.list(WIDGETS)).expect(200)
    (await everywhere.list(NODES)).expect(200)


async def review(who: Api, resource: Resource, **spec: Any) -> JSON:
    body = {"apiVersion": resource.api_version, "kind": resource.kind, "spec": spec}
    return dict((await who.call("POST", resource.path(), body=body)).expect(201)["status"])


async def test_a_token_review_says_whose_a_token_is(api: Api, backend: Backend, accounts: Accounts) -> None:
    token = await accounts.token("worker")
    status = await review(api, TOKEN_REVIEWS, token=token)
    own = {"apiVersion": "authentication.k8s.io/v1", "kind": "SelfSubjectReview"}
    reply = await api.as_token(token).call("POST", SELF_REVIEWS.path(), body=own)
    assert status["authenticated"] is True
    assert status["user"] == reply.expect(201)["status"]["userInfo"]
    await api.delete(SERVICEACCOUNTS, accounts.namespace, "worker")
    for unknown in (token, "wrong", "a.b.c"):
        status = await eventually(
            lambda token=unknown: review(api, TOKEN_REVIEWS, token=token),
            within_seconds=backend.patience_seconds,
            until=lambda status: not status.get("authenticated"),
        )
        assert "username" not in status.get("user", {}) and "invalid bearer token" in status["error"]


async def test_an_access_review_says_what_somebody_else_may(
    api: Api, backend: Backend, accounts: Accounts
) -> None:
    path = f"/{accounts.namespace}"
    urls = {"nonResourceURLs": [f"{path}/*"], "verbs": ["get"]}
    role = await accounts.cluster_role(urls, rule(WIDGETS.group, WIDGETS.plural, "list"))
    await accounts.token("reader")
    await accounts.bind_everywhere("reader", role)
    reader = f"system:serviceaccount:{accounts.namespace}:reader"

    async def allowed(user: str, **asked: Any) -> bool:
        return bool((await review(api, SUBJECT_ACCESS_REVIEWS, user=user, **asked))["allowed"])

    async def may_get(user: str, path: str, verb: str = "get") -> bool:
        return await allowed(user, nonResourceAttributes={"path": path, "verb": verb})

    async def may(user: str, verb: str) -> bool:
        asked = {"verb": verb, "group": WIDGETS.group, "resource": WIDGETS.plural}
        return await allowed(user, resourceAttributes=asked)

    await eventually(
        lambda: may_get(reader, f"{path}/metrics"), within_seconds=backend.patience_seconds, until=bool
    )
    assert not await may_get(reader, path) and not await may_get(reader, f"{path}/metrics", "post")
    assert not await may_get("nobody", f"{path}/metrics")
    assert await may(reader, "list") and not await may(reader, "delete") and not await may("nobody", "list")
