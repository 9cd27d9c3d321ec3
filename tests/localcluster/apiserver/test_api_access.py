"""Who may do what: tokens, RBAC, and admission policies."""

from __future__ import annotations

import base64
import json
import stat
import time
from typing import Any

import pytest

from localcluster.apiserver import rbac, tokens
from localcluster.apiserver.server import Serving
from localcluster.apiserver.tokens import Claims, Reference
from localcluster.paths import Home
from tests.localcluster.apiserver.api import (
    CONFIG_MAPS,
    PODS,
    WIDGETS,
    Api,
    config_map,
    pod,
    widget,
)

pytestmark = pytest.mark.real

ACCOUNTS = "/api/v1/namespaces/default/serviceaccounts"
RBAC = "/apis/rbac.authorization.k8s.io/v1"
TOKEN_REVIEWS = "/apis/authentication.k8s.io/v1/tokenreviews"
ACCESS_REVIEWS = "/apis/authorization.k8s.io/v1/subjectaccessreviews"
SELF_ACCESS_REVIEWS = "/apis/authorization.k8s.io/v1/selfsubjectaccessreviews"
BOT = "system:serviceaccount:default:bot"
POLICIES = "/apis/admissionregistration.k8s.io/v1/validatingadmissionpolicies"
BINDINGS = "/apis/admissionregistration.k8s.io/v1/validatingadmissionpolicybindings"


async def bot_of(api: Api, **bound: str) -> Api:
    """A ServiceAccount's client."""
    account = {"apiVersion": "v1", "kind": "ServiceAccount", "metadata": {"name": "bot"}}
    await api.post(ACCOUNTS, account)
    spec: dict[str, Any] = {"boundObjectRef": {"kind": "Pod", "apiVersion": "v1", **bound}} if bound else {}
    answer = await api.post(f"{ACCOUNTS}/bot/token", {"spec": spec})
    assert answer.code == 201, answer.body
    return api.as_bearer(answer.body["status"]["token"])


async def grant(api: Api, *rules: dict[str, Any]) -> None:
    metadata = {"name": "bot", "namespace": "default"}
    role = {"apiVersion": "rbac.authorization.k8s.io/v1", "kind": "Role", "metadata": metadata}
    await api.created(f"{RBAC}/namespaces/default/roles", {**role, "rules": list(rules)})
    binding = {
        "apiVersion": "rbac.authorization.k8s.io/v1",
        "kind": "RoleBinding",
        "metadata": metadata,
        "roleRef": {"apiGroup": "rbac.authorization.k8s.io", "kind": "Role", "name": "bot"},
        "subjects": [{"kind": "ServiceAccount", "name": "bot", "namespace": "default"}],
    }
    await api.created(f"{RBAC}/namespaces/default/rolebindings", binding)


async def bind_everywhere(api: Api, role: str) -> None:
    """Bind a ClusterRole to the bot."""
    group = "rbac.authorization.k8s.io"
    binding = {
        "apiVersion": f"{group}/v1",
        "kind": "ClusterRoleBinding",
        "metadata": {"name": role},
        "roleRef": {"apiGroup": group, "kind": "ClusterRole", "name": role},
        "subjects": [{"kind": "ServiceAccount", "name": "bot", "namespace": "default"}],
    }
    await api.created(f"{RBAC}/clusterrolebindings", binding)


def path_asked(path: str, verb: str = "get") -> dict[str, Any]:
    """What an access review asks about a path that is no resource."""
    return {"nonResourceAttributes": {"path": path, "verb": verb}}


def rule(groups: list[str], resources: list[str], verbs: list[str], names: list[str] | None = None) -> dict:
    granted = {"apiGroups": groups, "resources": resources, "verbs": verbs}
    return {**granted, "resourceNames": names} if names else granted


async def test_strangers_get_nothing(api: Api) -> None:
    for bearer in ("", "wrong", "a.b.c", "a" * 10_000):
        for path in ("/readyz", "/version", "/api", PODS):
            answer = await api.as_bearer(bearer).get(path)
            assert (answer.code, answer.reason) == (401, "Unauthorized")


async def test_other_users_of_the_machine_cannot_read_the_files(home: Home, api: Api) -> None:
    for path in (home.root, *home.root.rglob("*")):
        assert stat.S_IMODE(path.stat().st_mode) & 0o077 == 0, path


async def test_a_token_says_who_and_in_which_pod(api: Api) -> None:
    created = await api.created(PODS, pod("one", serviceAccountName="default"))
    await bot_of(api)
    own = await api.created(PODS, pod("two", serviceAccountName="bot"))
    bot = await bot_of(api, name="two", uid=own["metadata"]["uid"])
    review = await bot.post(
        "/apis/authentication.k8s.io/v1/selfsubjectreviews",
        {"apiVersion": "authentication.k8s.io/v1", "kind": "SelfSubjectReview"},
    )
    who = review.body["status"]["userInfo"]
    assert who["username"] == BOT and "system:serviceaccounts:default" in who["groups"]
    assert who["extra"]["authentication.kubernetes.io/pod-name"] == ["two"]
    assert who["extra"]["authentication.kubernetes.io/pod-uid"] == [own["metadata"]["uid"]]
    reference = {"kind": "Pod", "apiVersion": "v1", "name": "one", "uid": created["metadata"]["uid"]}
    foreign = await api.post(f"{ACCOUNTS}/bot/token", {"spec": {"boundObjectRef": reference}})
    assert foreign.code == 400 and "cannot bind token" in foreign.message


async def test_a_token_dies_with_its_pod_and_with_its_account(api: Api) -> None:
    await bot_of(api)
    created = await api.created(PODS, pod("one", serviceAccountName="bot"))
    bound = await bot_of(api, name="one", uid=created["metadata"]["uid"])
    unbound = await bot_of(api)
    assert (await bound.get("/version")).code == 200
    await api.delete(f"{PODS}/one")
    assert (await bound.get("/version")).code == 401
    assert (await unbound.get("/version")).code == 200
    await api.delete(f"{ACCOUNTS}/bot")
    await bot_of(api)
    assert (await unbound.get("/version")).code == 401


async def test_expired_and_forged_tokens_are_refused(api: Api, serving: Serving) -> None:
    bot = await bot_of(api)
    account = (await api.get(f"{ACCOUNTS}/bot")).body["metadata"]
    now = int(time.time())

    def claims(expires_at: int) -> Claims:
        reference = Reference(account["name"], account["uid"])
        times = {"issued_at": now - 100, "expires_at": expires_at}
        return Claims("default", reference, None, None, (tokens.ISSUER,), **times, token_id="t")

    key = serving.cluster.token_key
    assert (await api.as_bearer(tokens.issue(claims(now + 3600), key)).get("/version")).code == 200
    assert (await api.as_bearer(tokens.issue(claims(now - 1), key)).get("/version")).code == 401
    assert (await api.as_bearer(tokens.issue(claims(now + 3600), b"guess")).get("/version")).code == 401
    header, payload, signature = bot._token.split(".")
    decoded = json.loads(base64.urlsafe_b64decode(payload + "=="))
    decoded["sub"] = "system:serviceaccount:kube-system:admin"
    forged = base64.urlsafe_b64encode(json.dumps(decoded).encode()).rstrip(b"=").decode()
    assert (await api.as_bearer(f"{header}.{forged}.{signature}").get("/version")).code == 401


async def test_accounts_may_nothing_until_it_is_granted(api: Api) -> None:
    bot = await bot_of(api)
    answer = await bot.get(PODS)
    assert (answer.code, answer.reason) == (403, "Forbidden")
    assert answer.message == (
        f'pods is forbidden: User "{BOT}" cannot list resource "pods" in API group "" '
        'in the namespace "default"'
    )
    await grant(api, rule([""], ["pods"], ["list"]))
    assert (await bot.get(PODS)).code == 200
    answer = await bot.get("/api/v1/nodes/node-0")
    assert answer.message == (
        f'nodes "node-0" is forbidden: User "{BOT}" cannot get resource "nodes" in API group "" '
        "at the cluster scope"
    )
    assert (await bot.get("/api/v1/pods")).code == 403
    assert (await bot.get("/apis")).code == 200


async def test_rules_distinguish_verbs_subresources_and_names(widgets: Api) -> None:
    bot = await bot_of(widgets)
    for name in ("one", "two"):
        await widgets.created(WIDGETS, widget(name))
    await grant(
        widgets,
        rule(["example.com"], ["widgets"], ["get", "watch", "list"], ["one"]),
        rule(["example.com"], ["widgets/status"], ["patch"]),
    )
    assert (await bot.get(f"{WIDGETS}/one")).code == 200
    assert (await bot.get(f"{WIDGETS}/two")).code == 403
    assert (await bot.get(WIDGETS)).code == 403
    assert (await bot.get(WIDGETS, fieldSelector="metadata.name=one")).names == ["one"]
    assert (await bot.patch(f"{WIDGETS}/two/status", {"status": {"phase": "Up"}})).code == 200
    refused = await bot.patch(f"{WIDGETS}/one", {"spec": {"size": 2}})
    assert (
        refused.code == 403
        and 'cannot patch resource "widgets" in API group "example.com"' in refused.message
    )


async def test_rights_follow_bindings_at_once(api: Api) -> None:
    bot = await bot_of(api)
    await grant(api, rule([""], ["configmaps"], ["*"]))
    assert (await bot.post(CONFIG_MAPS, config_map("one"))).code == 201
    review = {
        "apiVersion": "authorization.k8s.io/v1",
        "kind": "SelfSubjectAccessReview",
        "spec": {"resourceAttributes": {"namespace": "default", "verb": "get", "resource": "configmaps"}},
    }
    path = SELF_ACCESS_REVIEWS
    assert (await bot.post(path, review)).body["status"]["allowed"] is True
    await api.delete(f"{RBAC}/namespaces/default/rolebindings/bot")
    assert (await bot.get(f"{CONFIG_MAPS}/one")).code == 403
    assert (await bot.post(path, review)).body["status"]["allowed"] is False


async def test_nobody_reviews_others_without_the_right_to(api: Api) -> None:
    bot = await bot_of(api)
    for path in (TOKEN_REVIEWS, ACCESS_REVIEWS):
        assert (await bot.post(path, {"spec": {}})).code == 403
        assert (await api.get(path)).code == 405
    await bind_everywhere(api, "system:auth-delegator")
    assert (await bot.post(TOKEN_REVIEWS, {"spec": {"token": "x"}})).code == 201
    assert (await bot.post(ACCESS_REVIEWS, {"spec": {"user": BOT, **path_asked("/")}})).code == 201


async def token_status(api: Api, token: str, *audiences: str) -> dict[str, Any]:
    kind = {"apiVersion": "authentication.k8s.io/v1", "kind": "TokenReview"}
    spec = {"token": token, **({"audiences": audiences} if audiences else {})}
    answer = await api.post(TOKEN_REVIEWS, {**kind, "spec": spec})
    assert answer.code == 201 and answer.body["kind"] == "TokenReview", answer.body
    return dict(answer.body["status"])


async def test_a_token_review_says_whose_a_token_is_until_its_pod_is_gone(api: Api) -> None:
    await bot_of(api)
    created = await api.created(PODS, pod("one", serviceAccountName="bot"))
    bound = await bot_of(api, name="one", uid=created["metadata"]["uid"])
    status = await token_status(api, bound._token)
    own = await bound.post("/apis/authentication.k8s.io/v1/selfsubjectreviews", {})
    assert status == {
        "authenticated": True,
        "user": own.body["status"]["userInfo"],
        "audiences": [tokens.ISSUER],
    }
    assert status["user"]["extra"]["authentication.kubernetes.io/pod-name"] == ["one"]
    await api.delete(f"{PODS}/one")
    gone = await token_status(api, bound._token)
    assert "authenticated" not in gone and gone["user"] == {} and "gone" in gone["error"]
    admin = await token_status(api, api._token)
    assert admin["user"]["username"] == "kubernetes-admin"


async def test_a_token_review_knows_no_false_token(api: Api) -> None:
    bot = await bot_of(api)
    for token in ("wrong", "a.b.c", "é" * 1000, "\x00", bot._token[:-4] + "AAAA", bot._token + "é"):
        status = await token_status(api, token)
        assert "authenticated" not in status and status["error"].startswith("[invalid bearer token"), token
    lone = await api.post(TOKEN_REVIEWS, b'{"spec": {"token": "\\ud800"}}')
    assert lone.code == 201 and "authenticated" not in lone.body["status"]
    for body in ({}, {"spec": {}}, {"spec": {"token": ""}}):
        answer = await api.post(TOKEN_REVIEWS, body)
        assert answer.code == 400 and answer.message == "token is required for TokenReview in authentication"


async def test_a_token_is_for_its_audiences_alone(api: Api) -> None:
    await bot_of(api)
    spec = {"audiences": ["vault", "other"]}
    issued = await api.post(f"{ACCOUNTS}/bot/token", {"spec": spec})
    token = issued.body["status"]["token"]
    assert (await token_status(api, token, "x", "other", "vault"))["audiences"] == ["other", "vault"]
    for asked in ((), ("x",)):
        refused = await token_status(api, token, *asked)
        assert "authenticated" not in refused and "not for" in refused["error"]
    assert (await api.as_bearer(token).get("/version")).code == 401
    assert "authenticated" not in await token_status(api, api._token, "vault")


async def allowed(api: Api, **spec: Any) -> bool:
    kind = {"apiVersion": "authorization.k8s.io/v1", "kind": "SubjectAccessReview"}
    answer = await api.post(ACCESS_REVIEWS, {**kind, "metadata": {"creationTimestamp": None}, "spec": spec})
    assert answer.code == 201 and answer.body["spec"] == spec, answer.body
    return bool(answer.body["status"]["allowed"])


async def test_an_access_review_says_what_a_user_or_group_may(api: Api) -> None:
    await grant(api, rule([""], ["pods", "pods/log"], ["get"], ["one"]))
    named = {"namespace": "default", "verb": "get", "resource": "pods", "name": "one"}

    async def bot_may(**asked: str) -> bool:
        return await allowed(api, user=BOT, resourceAttributes={**named, **asked})

    assert await bot_may() and await bot_may(subresource="log")
    for other in ("verb", "resource", "name", "namespace", "group", "subresource"):
        assert not await bot_may(**{other: "other"}), other
    assert not await allowed(api, user="stranger", resourceAttributes=named)
    assert not await allowed(api, groups=["strangers"], resourceAttributes=named)
    assert await allowed(api, groups=["system:masters"], resourceAttributes=named)


async def test_an_access_review_says_who_may_get_a_path(api: Api) -> None:
    bot = await bot_of(api)
    rules = [{"nonResourceURLs": ["/metrics", "/debug/*"], "verbs": ["get"]}]
    kind = {"apiVersion": "rbac.authorization.k8s.io/v1", "kind": "ClusterRole"}
    await api.created(f"{RBAC}/clusterroles", {**kind, "metadata": {"name": "paths"}, "rules": rules})
    assert not await allowed(api, user=BOT, **path_asked("/metrics"))
    await bind_everywhere(api, "paths")
    for path, may in {"/metrics": True, "/metrics/": False, "/debug/x": True, "/debug": False}.items():
        assert await allowed(api, user=BOT, **path_asked(path)) is may, path
        own = await bot.post(SELF_ACCESS_REVIEWS, {"spec": path_asked(path)})
        assert own.body["status"]["allowed"] is may, path
    assert not await allowed(api, user=BOT, **path_asked("/metrics", "post"))
    assert not await allowed(api, user="stranger", groups=["system:unauthenticated"], **path_asked("/apis"))
    assert await allowed(api, user="somebody", groups=["system:authenticated"], **path_asked("/apis/x/v1"))


async def test_access_reviews_ask_one_thing_of_somebody(api: Api) -> None:
    both = {"resourceAttributes": {"verb": "get", "resource": "pods"}, **path_asked("/")}
    for path, subject in ((ACCESS_REVIEWS, {"user": BOT}), (SELF_ACCESS_REVIEWS, {})):
        for spec, field in ((both, "spec.nonResourceAttributes"), ({}, "spec.resourceAttributes")):
            answer = await api.post(path, {"spec": {**subject, **spec}})
            assert (answer.code, answer.reason) == (422, "Invalid")
            assert [each["field"] for each in answer.body["details"]["causes"]] == [field]
        named = await api.post(path, {"metadata": {"name": "x"}, "spec": {**subject, **path_asked("/")}})
        assert named.code == 422 and "metadata: Invalid value: must be empty" in named.message
    nobody = await api.post(ACCESS_REVIEWS, {"spec": path_asked("/")})
    assert nobody.code == 422 and "at least one of user or group must be specified" in nobody.message


async def test_what_is_remembered_of_reviewed_users_is_bounded(
    api: Api, serving: Serving, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(rbac, "KNOWN_RULES_MAX", 5)
    for number in range(20):
        assert not await allowed(api, user=f"user{number}", **path_asked("/x"))
        assert not await allowed(api, user="long" * 1000 + str(number), **path_asked("/x"))
    known = serving.cluster.authorizer._rules
    assert len(known) <= 5 and all(len(name) < 1000 for name, _, _ in known)


async def test_nobody_gives_away_rights_that_they_lack(api: Api) -> None:
    bot = await bot_of(api)
    rbac = ["rbac.authorization.k8s.io"]
    await grant(api, rule(rbac, ["roles", "rolebindings"], ["create"]), rule([""], ["pods"], ["get"]))

    def role(name: str, *rules: dict[str, Any]) -> dict[str, Any]:
        kind = {"apiVersion": "rbac.authorization.k8s.io/v1", "kind": "Role"}
        return {**kind, "metadata": {"name": name}, "rules": list(rules)}

    roles = f"{RBAC}/namespaces/default/roles"
    assert (await bot.post(roles, role("fine", rule([""], ["pods"], ["get"])))).code == 201
    answer = await bot.post(roles, role("more", rule([""], ["secrets"], ["get"])))
    assert answer.code == 403 and "attempting to grant RBAC permissions not currently held" in answer.message
    await api.patch(f"{roles}/bot", {"rules": [rule(rbac, ["roles"], ["create", "escalate"], ["x"])]})
    answer = await bot.post(roles, role("x", rule([""], ["secrets"], ["get"])))
    assert answer.code == 403, "a request to create an object names none, so a rule with names is not for it"
    await api.patch(f"{roles}/bot", {"rules": [rule(rbac, ["roles"], ["create", "escalate"])]})
    assert (await bot.post(roles, role("more", rule([""], ["secrets"], ["get"])))).code == 201


async def test_rights_may_be_held_in_pieces_and_given_on_with_owners_and_finalizers(api: Api) -> None:
    bot = await bot_of(api)
    group = "rbac.authorization.k8s.io"
    pieces = [rule([""], ["pods"], ["get"], [name]) for name in ("a", "b")]
    await grant(api, rule([group], ["roles", "rolebindings"], ["create", "patch"]), *pieces)
    roles, bindings = (f"{RBAC}/namespaces/default/{plural}" for plural in ("roles", "rolebindings"))
    kind = {"apiVersion": f"{group}/v1", "kind": "Role", "metadata": {"name": "both"}}
    assert (await bot.post(roles, {**kind, "rules": [rule([""], ["pods"], ["get"], ["a", "b"])]})).code == 201
    assert (await bot.post(roles, {**kind, "rules": [rule([""], ["pods"], ["get"])]})).code == 403
    finalizers = {"metadata": {"finalizers": ["example.com/wait"]}}
    await api.created(roles, {**kind, "metadata": {"name": "more"}, "rules": [rule([""], ["pods"], ["*"])]})
    assert (await bot.patch(f"{roles}/more", finalizers)).code == 200
    assert (await bot.patch(f"{roles}/more", {"metadata": {"labels": {"a": "b"}}})).code == 403
    binding = {
        "apiVersion": f"{group}/v1",
        "kind": "RoleBinding",
        "metadata": {"name": "late"},
        "roleRef": {"apiGroup": group, "kind": "Role", "name": "none"},
    }
    answer = await bot.post(bindings, binding)
    assert (answer.code, answer.message) == (404, f'roles.{group} "none" not found')
    await api.created(bindings, binding)


async def test_a_rule_for_one_name_allows_a_list_and_watch_of_that_name(api: Api) -> None:
    bot = await bot_of(api)
    await grant(api, rule([""], ["secrets"], ["get", "list", "watch"], ["mine"]))
    secrets = "/api/v1/namespaces/default/secrets"
    for name in ("mine", "other"):
        kind = {"apiVersion": "v1", "kind": "Secret", "metadata": {"name": name}}
        await api.created(secrets, {**kind, "stringData": {"key": name}})
    only = "metadata.name=mine"
    assert (await bot.get(secrets, fieldSelector=only)).names == ["mine"]
    async with bot.watch(secrets, fieldSelector=only) as events:
        assert await events.seen(1) == [("ADDED", "mine")]
    assert (await bot.get(f"{secrets}/mine")).code == 200
    for path, query in ((f"{secrets}/other", {}), (secrets, {}), (secrets, {"fieldSelector": only[:-1]})):
        assert (await bot.get(path, **query)).code == 403


async def test_network_policies_are_kept_with_their_defaults(api: Api) -> None:
    path = "/apis/networking.k8s.io/v1/namespaces/default/networkpolicies"

    def policy_of(name: str, **spec: Any) -> dict[str, Any]:
        kind = {"apiVersion": "networking.k8s.io/v1", "kind": "NetworkPolicy", "metadata": {"name": name}}
        return {**kind, "spec": {"podSelector": {"matchLabels": {"job": name}}, **spec}}

    peer = {"podSelector": {"matchLabels": {"job": "a"}}}
    made = await api.created(path, policy_of("a", ingress=[{"from": [peer], "ports": [{"port": 1}]}]))
    assert made["metadata"]["generation"] == 1 and made["spec"]["policyTypes"] == ["Ingress"]
    assert made["spec"]["ingress"][0]["ports"] == [{"port": 1, "protocol": "TCP"}]
    out = await api.created(path, policy_of("b", egress=[{}]))
    assert out["spec"]["policyTypes"] == ["Ingress", "Egress"]
    refused = await api.post(path, policy_of("c", ingress=[{"from": [{}]}]))
    assert "spec.ingress[0].from[0]: Required value: must specify a peer" in refused.message
    changed = await api.patch(f"{path}/a", {"spec": {"ingress": []}})
    assert changed.body["metadata"]["generation"] == 2
    async with api.watch(path) as events:
        assert await events.seen(2) == [("ADDED", "a"), ("ADDED", "b")]


def policy(name: str, **spec: Any) -> dict[str, Any]:
    rules = [
        {
            "apiGroups": ["example.com"],
            "apiVersions": ["v1"],
            "operations": ["CREATE", "UPDATE"],
            "resources": ["widgets", "widgets/status"],
        }
    ]
    kind = {"apiVersion": "admissionregistration.k8s.io/v1", "kind": "ValidatingAdmissionPolicy"}
    return {
        **kind,
        "metadata": {"name": name},
        "spec": {"matchConstraints": {"resourceRules": rules}, **spec},
    }


async def enforce(api: Api, definition: dict[str, Any], actions: tuple[str, ...] = ("Deny",)) -> None:
    await api.created(POLICIES, definition)
    name = definition["metadata"]["name"]
    binding = {
        "apiVersion": "admissionregistration.k8s.io/v1",
        "kind": "ValidatingAdmissionPolicyBinding",
        "metadata": {"name": f"{name}-binding"},
        "spec": {"policyName": name, "validationActions": list(actions)},
    }
    await api.created(BINDINGS, binding)


async def test_policies_deny_what_they_are_about(widgets: Api) -> None:
    validation = {"expression": "object.spec.size < 5", "message": "too large", "reason": "Forbidden"}
    await enforce(widgets, policy("small", validations=[validation]))
    answer = await widgets.post(WIDGETS, widget("one", {"size": 6}))
    assert (answer.code, answer.reason) == (403, "Forbidden")
    assert answer.message == (
        "widgets.example.com \"one\" is forbidden: ValidatingAdmissionPolicy 'small' with binding "
        "'small-binding' denied request: too large"
    )
    assert (await widgets.post(WIDGETS, widget("one", {"size": 4}))).code == 201
    assert (await widgets.patch(f"{WIDGETS}/one", {"spec": {"size": 7}})).code == 403
    assert (await widgets.post(CONFIG_MAPS, config_map("one"))).code == 201


async def test_policies_know_the_user_the_old_object_and_variables(widgets: Api) -> None:
    definition = policy(
        "own",
        matchConditions=[
            {
                "name": "accounts",
                "expression": "request.userInfo.username.startsWith('system:serviceaccount:')",
            }
        ],
        variables=[
            {
                "name": "pod",
                "expression": "has(request.userInfo.extra) && "
                "'authentication.kubernetes.io/pod-name' in request.userInfo.extra ? "
                "request.userInfo.extra['authentication.kubernetes.io/pod-name'][0] : ''",
            }
        ],
        validations=[
            {
                "expression": "variables.pod == object.metadata.name + '-1'",
                "messageExpression": "'only ' + object.metadata.name + '-1 may do this'",
            },
            {"expression": "!has(oldObject.status) || oldObject.status == object.status"},
        ],
    )
    await enforce(widgets, definition)
    await bot_of(widgets)
    await grant(widgets, rule(["example.com"], ["widgets/status"], ["patch"]))
    created = await widgets.created(PODS, pod("one-1", serviceAccountName="bot"))
    bot = await bot_of(widgets, name="one-1", uid=created["metadata"]["uid"])
    for name in ("one", "two"):
        await widgets.created(WIDGETS, widget(name))
    assert (await bot.patch(f"{WIDGETS}/one/status", {"status": {"phase": "Up"}})).code == 200
    refused = await bot.patch(f"{WIDGETS}/two/status", {"status": {"phase": "Up"}})
    assert refused.code == 422 and refused.message.endswith("denied request: only two-1 may do this")
    changed = await bot.patch(f"{WIDGETS}/one/status", {"status": {"phase": "Down"}})
    assert changed.code == 422 and "failed expression: !has(oldObject.status)" in changed.message
    assert (await widgets.patch(f"{WIDGETS}/two/status", {"status": {"phase": "Up"}})).code == 200


async def test_a_failing_policy_fails_closed_or_open_and_a_warning_warns(widgets: Api) -> None:
    broken = {"expression": "object.spec.nothing == 1"}
    await enforce(widgets, policy("open", validations=[broken], failurePolicy="Ignore"))
    assert (await widgets.post(WIDGETS, widget("one"))).code == 201
    await enforce(
        widgets, policy("warning", validations=[{"expression": "false", "message": "beware"}]), ("Warn",)
    )
    answer = await widgets.post(WIDGETS, widget("two"))
    assert answer.code == 201 and "beware" in answer.headers["Warning"]
    await enforce(widgets, policy("closed", validations=[broken]))
    answer = await widgets.post(WIDGETS, widget("three"))
    assert answer.code == 422 and "resulted in error" in answer.message


async def test_a_policy_that_cannot_be_evaluated_is_refused(api: Api) -> None:
    answer = await api.post(POLICIES, policy("bad", validations=[{"expression": "object.spec ==="}]))
    assert answer.code == 422
    assert answer.body["details"]["causes"][0]["field"] == "spec.validations[0].expression"
    for expression in ("object.spec.size", "'a' == 1"):
        answer = await api.post(POLICIES, policy("bad", validations=[{"expression": expression}]))
        assert answer.code == 422, expression
    unknown = policy("bad", validations=[{"expression": "nobody == 1"}])
    assert (await api.post(POLICIES, unknown)).code == 422


async def test_the_admin_may_act_as_somebody_else_and_others_may_not(api: Api) -> None:
    bot = await bot_of(api)
    await grant(api, rule([""], ["pods"], ["list"]))
    as_bot = {"headers": {"Impersonate-User": BOT}}
    assert (await api.get(PODS, **as_bot)).code == 200
    assert (await api.get(CONFIG_MAPS, **as_bot)).code == 403
    as_admin = {"headers": {"Impersonate-User": "root", "Impersonate-Group": "system:masters"}}
    assert (await api.get(CONFIG_MAPS, **as_admin)).code == 200
    refused = await bot.get(PODS, **as_admin)
    assert refused.code == 403 and 'cannot impersonate resource "users"' in refused.message
