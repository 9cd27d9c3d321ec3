"""Who may do what: tokens, RBAC, and admission policies."""

from __future__ import annotations

import base64
import json
import stat
import time
from typing import Any

import pytest

from localcluster.apiserver import tokens
from localcluster.apiserver.server import Serving
from localcluster.apiserver.tokens import Claims, Reference
from localcluster.paths import Home
from tests.conformance import resources
from tests.localcluster.apiserver.api import WIDGETS, Api, widget

pytestmark = pytest.mark.real

ACCOUNTS = "/api/v1/namespaces/default/serviceaccounts"
RBAC = "/apis/rbac.authorization.k8s.io/v1"
POLICIES = "/apis/admissionregistration.k8s.io/v1/validatingadmissionpolicies"
BINDINGS = "/apis/admissionregistration.k8s.io/v1/validatingadmissionpolicybindings"


async def bot_of(api: Api, **bound: str) -> Api:
    """A ServiceAccount's client."""
    account = {"apiVersion": "v1", "kind": "ServiceAccount", "metadata": {"name": "bot"}}
    await api.post(ACCOUNTS, account)
    spec: dict[str, Any] = {"boundObjectRef": {"kind": "Pod", "apiVersion": "v1", **bound}} if bound else {}
    answer = await api.post(f"{ACCOUNTS}/bot/token", {"spec": spec})
    assert answer.status == 201, answer.body
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


def rule(groups: list[str], resources: list[str], verbs: list[str], names: list[str] | None = None) -> dict:
    granted = {"apiGroups": groups, "resources": resources, "verbs": verbs}
    return {**granted, "resourceNames": names} if names else granted


async def test_other_users_of_the_machine_cannot_read_the_files(home: Home, api: Api) -> None:
    for path in (home.root, *home.root.rglob("*")):
        assert stat.S_IMODE(path.stat().st_mode) & 0o077 == 0, path


async def test_expired_and_forged_tokens_are_refused(api: Api, serving: Serving) -> None:
    bot = await bot_of(api)
    account = (await api.get(f"{ACCOUNTS}/bot")).body["metadata"]
    now = int(time.time())

    def claims(expires_at: int) -> Claims:
        reference = Reference(account["name"], account["uid"])
        times = {"issued_at": now - 100, "expires_at": expires_at}
        return Claims("default", reference, None, None, (tokens.ISSUER,), **times, token_id="t")

    key = serving.cluster.token_key
    assert (await api.as_bearer(tokens.issue(claims(now + 3600), key)).get("/version")).status == 200
    assert (await api.as_bearer(tokens.issue(claims(now - 1), key)).get("/version")).status == 401
    assert (await api.as_bearer(tokens.issue(claims(now + 3600), b"guess")).get("/version")).status == 401
    header, payload, signature = bot.token.split(".")
    decoded = json.loads(base64.urlsafe_b64decode(payload + "=="))
    decoded["sub"] = "system:serviceaccount:kube-system:admin"
    forged = base64.urlsafe_b64encode(json.dumps(decoded).encode()).rstrip(b"=").decode()
    assert (await api.as_bearer(f"{header}.{forged}.{signature}").get("/version")).status == 401


async def test_nobody_gives_away_rights_that_they_lack(api: Api) -> None:
    bot = await bot_of(api)
    rbac = ["rbac.authorization.k8s.io"]
    await grant(api, rule(rbac, ["roles", "rolebindings"], ["create"]), rule([""], ["pods"], ["get"]))

    def role(name: str, *rules: dict[str, Any]) -> dict[str, Any]:
        kind = {"apiVersion": "rbac.authorization.k8s.io/v1", "kind": "Role"}
        return {**kind, "metadata": {"name": name}, "rules": list(rules)}

    roles = f"{RBAC}/namespaces/default/roles"
    assert (await bot.post(roles, role("fine", rule([""], ["pods"], ["get"])))).status == 201
    answer = await bot.post(roles, role("more", rule([""], ["secrets"], ["get"])))
    assert (
        answer.status == 403 and "attempting to grant RBAC permissions not currently held" in answer.message
    )
    await api.patch(f"{roles}/bot", {"rules": [rule(rbac, ["roles"], ["create", "escalate"], ["x"])]})
    answer = await bot.post(roles, role("x", rule([""], ["secrets"], ["get"])))
    assert answer.status == 403, (
        "a request to create an object names none, so a rule with names is not for it"
    )
    await api.patch(f"{roles}/bot", {"rules": [rule(rbac, ["roles"], ["create", "escalate"])]})
    assert (await bot.post(roles, role("more", rule([""], ["secrets"], ["get"])))).status == 201


def policy(name: str, **spec: Any) -> dict[str, Any]:
    rules = [
        {
            "apiGroups": [resources.WIDGETS.group],
            "apiVersions": ["*"],
            "operations": ["CREATE", "UPDATE"],
            "resources": [resources.WIDGETS.plural],
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


async def test_a_failing_policy_fails_closed_or_open(widgets: Api) -> None:
    broken = {"expression": "object.spec.nothing == 1"}
    await enforce(widgets, policy("open", validations=[broken], failurePolicy="Ignore"))
    assert (await widgets.post(WIDGETS, widget("one"))).status == 201
    await enforce(widgets, policy("closed", validations=[broken]))
    answer = await widgets.post(WIDGETS, widget("three"))
    assert answer.status == 422 and "resulted in error" in answer.message
