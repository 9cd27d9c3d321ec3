"""Who may do what: TLS, tokens, service accounts, RBAC, and the policy that holds a worker to its own object."""

from __future__ import annotations

import asyncio
import base64
import json
import ssl
import stat
import time
from typing import Any
from urllib.parse import urlsplit

import aiohttp
import pytest

from .accounts import POD_NAME_EXTRA, RBAC, Accounts, rule
from .backend import Backend, EmbeddedCluster
from .conftest import Maker
from .kubectl import Kubectl
from .objects import manifest, unschedulable_pod
from .rawapi import Api
from .resources import (
    ACCESS_REVIEWS,
    CONFIGMAPS,
    LEASES,
    NODES,
    PODS,
    ROLEBINDINGS,
    ROLES,
    SELF_REVIEWS,
    SERVICEACCOUNTS,
    SUBJECT_ACCESS_REVIEWS,
    TOKEN_REVIEWS,
    WG,
    WIDGETS,
    Resource,
)
from .waiting import eventually

pytestmark = pytest.mark.real

JSON = dict[str, Any]


async def test_without_a_token_there_is_nothing_to_see(api: Api, backend: Backend, namespace: str) -> None:
    reply = await api.as_token(None).list(WIDGETS, namespace)
    if not backend.embedded and reply.status == 403:
        assert "system:anonymous" in reply.body["message"]
        return
    reply.refused(401, "Unauthorized")


@pytest.mark.parametrize("token", ["wrong", "a.b.c", "x" * 4000])
async def test_a_wrong_token_is_unauthorized(api: Api, namespace: str, token: str) -> None:
    (await api.as_token(token).list(WIDGETS, namespace)).refused(401, "Unauthorized")


async def test_the_server_speaks_tls_only(backend: Backend) -> None:
    address = urlsplit(backend.access.server)
    try:
        reader, writer = await asyncio.open_connection(address.hostname, address.port)
        writer.write(b"GET /version HTTP/1.1\r\nHost: x\r\n\r\n")
        answer = await asyncio.wait_for(reader.read(1000), 60)
        writer.close()
    except OSError:
        return
    assert b" 200 " not in answer


async def test_the_server_shows_a_certificate_of_its_own_authority(backend: Backend) -> None:
    access = backend.access
    async with aiohttp.ClientSession() as session:
        with pytest.raises(aiohttp.ClientConnectorCertificateError):
            await session.get(access.server + "/version", ssl=ssl.create_default_context())
        async with session.get(access.server + "/version", ssl=access.tls, headers=access.headers) as reply:
            assert reply.status == 200


def test_the_clusters_files_are_its_owners_alone(embedded: EmbeddedCluster) -> None:
    assert stat.S_IMODE(embedded.home.stat().st_mode) == 0o700
    assert stat.S_IMODE(embedded.kubeconfig.stat().st_mode) == 0o600


async def test_a_token_says_who_its_bearer_is(api: Api, accounts: Accounts) -> None:
    token = await accounts.token("worker", expirationSeconds=3600)
    review = {"apiVersion": "authentication.k8s.io/v1", "kind": "SelfSubjectReview"}
    reply = await api.as_token(token).call("POST", SELF_REVIEWS.path(), body=review)
    user = reply.expect(201)["status"]["userInfo"]
    assert user["username"] == f"system:serviceaccount:{accounts.namespace}:worker"
    assert set(user["groups"]) == {
        "system:serviceaccounts",
        f"system:serviceaccounts:{accounts.namespace}",
        "system:authenticated",
    }


async def test_a_token_is_a_jwt_that_expires(accounts: Accounts) -> None:
    token = await accounts.token("worker", expirationSeconds=900)
    payload = token.split(".")[1]
    claims = json.loads(base64.urlsafe_b64decode(payload + "=" * (-len(payload) % 4)))
    assert claims["sub"] == f"system:serviceaccount:{accounts.namespace}:worker"
    assert claims["kubernetes.io"]["serviceaccount"]["name"] == "worker"
    assert 800 < claims["exp"] - time.time() < 1000


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


async def test_tokens_are_not_given_for_what_is_not_there(accounts: Accounts) -> None:
    assert (await accounts.request("nobody")).status == 404
    await accounts.token("worker")
    reference = {"apiVersion": "v1", "kind": "Pod", "name": "none"}
    assert (await accounts.request("worker", boundObjectRef=reference)).status in (404, 409)
    (await accounts.request("worker", expirationSeconds=5)).refused(422, "Invalid")


async def test_a_token_dies_with_its_account(api: Api, accounts: Accounts) -> None:
    bearer = api.as_token(await accounts.token("worker"))
    await accounts.becomes(bearer, 403, WIDGETS)
    await api.delete(SERVICEACCOUNTS, accounts.namespace, "worker")
    await accounts.becomes(bearer, 401, WIDGETS)


async def test_an_account_may_do_nothing_at_first(api: Api, accounts: Accounts) -> None:
    bearer = api.as_token(await accounts.token("worker"))
    status = (await bearer.list(WIDGETS, accounts.namespace)).refused(403, "Forbidden")
    assert status["message"] == (
        f'{WIDGETS.group_resource} is forbidden: User "system:serviceaccount:{accounts.namespace}:worker" '
        f'cannot list resource "{WIDGETS.plural}" in API group "conformance.dlr.dev" in the namespace '
        f'"{accounts.namespace}"'
    )
    for resource in (PODS, CONFIGMAPS, LEASES, NODES):
        where = accounts.namespace if resource.namespaced else None
        (await bearer.list(resource, where)).refused(403, "Forbidden")


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


async def test_a_subresource_is_allowed_by_itself(api: Api, accounts: Accounts, make: Maker) -> None:
    bearer = api.as_token(await accounts.token("agent"))
    await make.widget()
    rules = (
        rule(WIDGETS.group, WIDGETS.plural, "list"),
        rule(WIDGETS.group, f"{WIDGETS.plural}/status", "patch"),
    )
    await accounts.allow("agent", *rules)
    await accounts.becomes(bearer, 200, WIDGETS)
    patch = {"status": {"phase": "Running"}, "spec": {"size": 9}}
    reply = await bearer.patch(WIDGETS, make.namespace, "w", patch, sub="status")
    assert reply.expect(200)["spec"]["size"] == 3
    (await bearer.patch(WIDGETS, make.namespace, "w", patch)).refused(403, "Forbidden")
    (await bearer.patch(WIDGETS, make.namespace, "w", patch, sub="scale")).refused(403, "Forbidden")


async def test_a_rule_may_name_single_objects(api: Api, accounts: Accounts, make: Maker) -> None:
    bearer = api.as_token(await accounts.token("one"))
    await make.widget("mine")
    await make.widget("other")
    named = rule(WIDGETS.group, WIDGETS.plural, "get patch", names="mine")
    await accounts.allow("one", named, rule(WIDGETS.group, WIDGETS.plural, "list"))
    await accounts.becomes(bearer, 200, WIDGETS)
    (await bearer.get(WIDGETS, make.namespace, "mine")).expect(200)
    (await bearer.get(WIDGETS, make.namespace, "other")).refused(403, "Forbidden")


async def test_wildcards_allow_everything_in_their_place(api: Api, accounts: Accounts) -> None:
    bearer = api.as_token(await accounts.token("all"))
    await accounts.allow("all", rule("*", "*", "*"))
    await accounts.becomes(bearer, 200, WIDGETS)
    (await bearer.create(CONFIGMAPS, manifest(CONFIGMAPS, accounts.namespace, "c"))).expect(201)
    (await bearer.list(PODS, "default")).refused(403, "Forbidden")


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


async def test_a_permission_ends_with_its_binding(api: Api, accounts: Accounts) -> None:
    bearer = api.as_token(await accounts.token("once"))
    await accounts.allow("once", rule(WIDGETS.group, WIDGETS.plural, "list"))
    await accounts.becomes(bearer, 200, WIDGETS)
    await api.delete(ROLEBINDINGS, accounts.namespace, "once")
    await accounts.becomes(bearer, 403, WIDGETS)


async def test_everybody_may_discover(api: Api, accounts: Accounts) -> None:
    bearer = api.as_token(await accounts.token("worker"))
    for path in ("/api", "/apis", "/api/v1", "/version", "/openapi/v3"):
        (await bearer.call("GET", path)).expect(200)


async def test_an_account_can_ask_what_it_may_do(api: Api, accounts: Accounts) -> None:
    bearer = api.as_token(await accounts.token("asker"))
    await accounts.allow("asker", rule(WIDGETS.group, WIDGETS.plural, "list"))
    await accounts.becomes(bearer, 200, WIDGETS)

    async def allowed(who: Api, verb: str, **attributes: str) -> bool:
        about = {"namespace": accounts.namespace, "verb": verb, "group": WIDGETS.group, **attributes}
        body = manifest(ACCESS_REVIEWS, None, "", spec={"resourceAttributes": about})
        del body["metadata"]
        reply = await who.call("POST", ACCESS_REVIEWS.path(), body=body)
        return bool(reply.expect(201)["status"]["allowed"])

    assert await allowed(bearer, "list", resource=WIDGETS.plural)
    assert not await allowed(bearer, "delete", resource=WIDGETS.plural)
    assert not await allowed(bearer, "list", resource=WIDGETS.plural, namespace="default")
    assert not await allowed(bearer, "list", resource=WIDGETS.plural, subresource="status")
    assert await allowed(api, "delete", resource=WIDGETS.plural)


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


async def test_a_token_is_for_its_audiences_alone(api: Api, accounts: Accounts) -> None:
    token = await accounts.token("worker", audiences=["vault", "other"])
    assert (await review(api, TOKEN_REVIEWS, token=token, audiences=["x", "vault"]))["audiences"] == ["vault"]
    for audiences in ([], ["x"]):
        status = await review(api, TOKEN_REVIEWS, token=token, audiences=audiences)
        assert not status.get("authenticated") and "error" in status
    (await api.as_token(token).list(WIDGETS, accounts.namespace)).refused(401, "Unauthorized")


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


async def test_an_account_reviews_others_only_where_it_may(api: Api, accounts: Accounts) -> None:
    bearer = api.as_token(await accounts.token("asker"))
    for resource in (TOKEN_REVIEWS, SUBJECT_ACCESS_REVIEWS):
        body = {"apiVersion": resource.api_version, "kind": resource.kind, "spec": {}}
        (await bearer.call("POST", resource.path(), body=body)).refused(403, "Forbidden")


async def test_an_access_review_asks_one_thing_of_somebody(api: Api) -> None:
    of_path = {"nonResourceAttributes": {"path": "/", "verb": "get"}}
    of_both = {"resourceAttributes": {"verb": "get", "resource": "pods"}, **of_path}
    for spec in ({"user": "x"}, {"user": "x", **of_both}, of_path):
        body = manifest(SUBJECT_ACCESS_REVIEWS, None, "", spec=spec)
        del body["metadata"]
        (await api.call("POST", SUBJECT_ACCESS_REVIEWS.path(), body=body)).refused(422, "Invalid")


async def test_an_account_cannot_grant_what_it_lacks(api: Api, accounts: Accounts) -> None:
    bearer = api.as_token(await accounts.token("climber"))
    await accounts.allow("climber", rule(RBAC, "roles", "create list"))
    await accounts.becomes(bearer, 200, ROLES)
    role = manifest(ROLES, accounts.namespace, "more", rules=[rule("", "secrets", "get")])
    message = (await bearer.create(ROLES, role)).refused(403, "Forbidden")["message"]
    assert "attempting to grant RBAC permissions not currently held" in message


async def test_kubectl_with_a_service_accounts_token(
    kubectl: Kubectl, api: Api, accounts: Accounts, make: Maker
) -> None:
    await make.widget("seen")
    token = await accounts.token("reader")
    await accounts.allow("reader", rule(WIDGETS.group, WIDGETS.plural, "get list"))
    await accounts.becomes(api.as_token(token), 200, WIDGETS)
    # A token beside a client certificate would lose against it, so the kubeconfig names the server only.
    bare = json.loads((await kubectl.run("config", "view", "--minify", "--raw", "-o", "json")).stdout)
    bare["users"] = [{"name": entry["name"], "user": {"token": token}} for entry in bare["users"]]
    path = kubectl.home / f"{accounts.namespace}.json"
    path.write_text(json.dumps(bare))
    arguments = ("--kubeconfig", str(path))
    listed = await kubectl.run(*arguments, "get", WG, "-o", "name", namespace=make.namespace)
    assert listed.lines == [f"{WIDGETS.singular_group}/seen"]
    said = await kubectl.refused(*arguments, "delete", WG, "seen", namespace=make.namespace)
    assert "Forbidden" in said
