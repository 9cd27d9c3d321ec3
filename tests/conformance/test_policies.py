"""A ValidatingAdmissionPolicy that holds a worker to its own object, whatever RBAC allows."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Any

import pytest

from .accounts import POD_NAME_EXTRA, Accounts, rule
from .backend import Backend
from .conftest import Maker
from .objects import manifest, unique, unschedulable_pod
from .rawapi import Api
from .resources import (
    PODS,
    POLICIES,
    POLICYBINDINGS,
    ROLES,
    WIDGETS,
)
from .waiting import eventually

pytestmark = pytest.mark.real

JSON = dict[str, Any]


def own_object_policy(name: str) -> JSON:
    """As deploy/admission has it: a Pod may write `status.agent` of the object that its name is derived from."""
    extra = f"request.userInfo.extra['{POD_NAME_EXTRA}']"
    return manifest(
        POLICIES,
        None,
        name,
        spec={
            "failurePolicy": "Fail",
            "matchConstraints": {
                "resourceRules": [
                    {
                        "apiGroups": [WIDGETS.group],
                        "apiVersions": [WIDGETS.version],
                        "operations": ["UPDATE"],
                        "resources": [f"{WIDGETS.plural}/status"],
                    }
                ]
            },
            "matchConditions": [
                {
                    "name": "is-a-service-account",
                    "expression": "request.userInfo.username.startsWith('system:serviceaccount:')",
                }
            ],
            "variables": [
                {
                    "name": "pod",
                    "expression": f"has(request.userInfo.extra) && '{POD_NAME_EXTRA}' in request.userInfo.extra"
                    f" ? {extra}[0] : ''",
                }
            ],
            "validations": [
                {
                    "expression": "variables.pod == object.metadata.name + '-' + string(object.spec.size)",
                    "message": "a worker reports on its own object only",
                },
                {
                    "expression": "(has(object.status.phase) ? object.status.phase : '') == "
                    "(has(oldObject.status) && has(oldObject.status.phase) ? oldObject.status.phase : '')",
                    "message": "a worker writes status.agent only",
                },
            ],
        },
    )


@pytest.fixture
async def policy(api: Api, backend: Backend, namespace: str) -> AsyncIterator[str]:
    """The policy, bound to this test's namespace and in force."""
    name = unique("conformance-own-object")
    (await api.create(POLICIES, own_object_policy(name))).expect(201)
    selector = {"matchLabels": {"kubernetes.io/metadata.name": namespace}}
    spec = {
        "policyName": name,
        "validationActions": ["Deny"],
        "matchResources": {"namespaceSelector": selector},
    }
    (await api.create(POLICYBINDINGS, manifest(POLICYBINDINGS, None, name, spec=spec))).expect(201)
    yield name
    await api.delete(POLICYBINDINGS, None, name)
    await api.delete(POLICIES, None, name)


async def test_a_policy_holds_a_worker_to_its_own_object(
    api: Api, backend: Backend, accounts: Accounts, make: Maker, policy: str
) -> None:
    namespace = make.namespace
    await accounts.token("worker")
    await accounts.allow(
        "worker",
        rule(WIDGETS.group, WIDGETS.plural, "list"),
        rule(WIDGETS.group, f"{WIDGETS.plural}/status", "patch"),
    )
    made = (
        await api.create(PODS, unschedulable_pod(namespace, "mine-7", serviceAccountName="worker"))
    ).expect(201)
    reference = {"apiVersion": "v1", "kind": "Pod", "name": "mine-7", "uid": made["metadata"]["uid"]}
    worker = api.as_token(await accounts.token("worker", boundObjectRef=reference))
    await accounts.becomes(worker, 200, WIDGETS)
    await make.widget("mine", {"size": 7})
    await make.widget("other", {"size": 7})

    async def report(name: str, status: JSON, who: Api = worker) -> Any:
        return await who.patch(WIDGETS, namespace, name, {"status": status}, sub="status")

    refusal = await eventually(
        lambda: report("other", {"agent": {"state": unique("x")}}),
        within_seconds=backend.patience_seconds,
        until=lambda reply: reply.status != 200,
    )
    body = refusal.expect(403, 422)
    assert f"ValidatingAdmissionPolicy '{policy}'" in body["message"]
    assert "a worker reports on its own object only" in body["message"]
    (await report("mine", {"agent": {"state": "Running"}})).expect(200)
    stolen = (await report("mine", {"phase": "Succeeded"})).expect(403, 422)
    assert "a worker writes status.agent only" in stolen["message"]
    (await report("other", {"phase": "Running"}, who=api)).expect(200)
    unbound = api.as_token(await accounts.token("worker"))
    (await report("mine", {"agent": {"state": "Forged"}}, who=unbound)).expect(403, 422)
    await api.patch(WIDGETS, namespace, "mine", {"spec": {"size": 8}})
    (await report("mine", {"agent": {"state": "Late"}})).expect(403, 422)
    assert (await api.get(WIDGETS, namespace, "mine")).body["status"] == {"agent": {"state": "Running"}}


async def test_a_policy_asks_what_else_the_author_may(
    api: Api, backend: Backend, accounts: Accounts, make: Maker
) -> None:
    """As deploy/admission has it: whoever may patch but not update is held; to whom another role gives both, not."""
    name = unique("conformance-by-way-of")
    policy = own_object_policy(name)
    policy["spec"]["matchConditions"].append(
        {
            "name": "by-way-of-a-role",
            "expression": f"authorizer.group('{WIDGETS.group}').resource('{WIDGETS.plural}')"
            ".subresource('status').namespace(request.namespace).check('patch').allowed() && "
            "!authorizer.requestResource.check('update').allowed()",
        }
    )
    selector = {"matchLabels": {"kubernetes.io/metadata.name": make.namespace}}
    binding = {
        "policyName": name,
        "validationActions": ["Deny"],
        "matchResources": {"namespaceSelector": selector},
    }
    (await api.create(POLICIES, policy)).expect(201)
    (await api.create(POLICYBINDINGS, manifest(POLICYBINDINGS, None, name, spec=binding))).expect(201)
    try:
        bearer = api.as_token(await accounts.token("worker"))
        await accounts.allow(
            "worker",
            rule(WIDGETS.group, WIDGETS.plural, "list"),
            rule(WIDGETS.group, f"{WIDGETS.plural}/status", "patch"),
        )
        await accounts.becomes(bearer, 200, WIDGETS)
        await make.widget()

        async def report() -> Any:
            status = {"agent": {"state": unique("x")}}
            return await bearer.patch(WIDGETS, make.namespace, "w", {"status": status}, sub="status")

        patience = backend.patience_seconds
        refused = await eventually(report, within_seconds=patience, until=lambda reply: reply.status != 200)
        refused.expect(403, 422)
        both = {"rules": [rule(WIDGETS.group, f"{WIDGETS.plural}/status", "patch update")]}
        (await api.patch(ROLES, make.namespace, "worker", both)).expect(200)
        await eventually(report, within_seconds=patience, until=lambda reply: reply.status == 200)
    finally:
        await api.delete(POLICYBINDINGS, None, name)
        await api.delete(POLICIES, None, name)


async def test_a_policy_without_a_binding_binds_nobody(api: Api, accounts: Accounts, make: Maker) -> None:
    name = unique("conformance-unbound")
    (await api.create(POLICIES, own_object_policy(name))).expect(201)
    try:
        bearer = api.as_token(await accounts.token("worker"))
        await accounts.allow(
            "worker",
            rule(WIDGETS.group, WIDGETS.plural, "list"),
            rule(WIDGETS.group, f"{WIDGETS.plural}/status", "patch"),
        )
        await accounts.becomes(bearer, 200, WIDGETS)
        await make.widget()
        reply = await bearer.patch(
            WIDGETS, make.namespace, "w", {"status": {"phase": "Running"}}, sub="status"
        )
        reply.expect(200)
    finally:
        await api.delete(POLICIES, None, name)


async def test_a_policy_that_does_not_compile_is_refused(api: Api) -> None:
    broken = own_object_policy(unique("conformance-broken"))
    broken["spec"]["validations"] = [{"expression": "object.spec.size >"}]
    (await api.create(POLICIES, broken)).refused(422, "Invalid")
