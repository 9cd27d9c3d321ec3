"""Namespaces: what comes with a new one, and what goes with an old one."""

from __future__ import annotations

from typing import Any

import pytest

from .backend import Backend
from .conftest import Maker
from .kubectl import Kubectl
from .objects import lease, unique, unschedulable_pod, widget
from .rawapi import Api
from .resources import CONFIGMAPS, LEASES, NAMESPACES, PODS, SERVICEACCOUNTS, WIDGETS
from .waiting import eventually

pytestmark = pytest.mark.real

JSON = dict[str, Any]

HOLD = "conformance.dlr.dev/hold"


async def gone(api: Api, backend: Backend, namespace: str) -> None:
    await eventually(
        lambda: api.get(NAMESPACES, None, namespace),
        within_seconds=backend.patience_seconds,
        until=lambda reply: reply.status == 404,
    )


async def test_a_new_namespace_is_active_and_labelled_with_its_name(api: Api, namespace: str) -> None:
    body = (await api.get(NAMESPACES, None, namespace)).expect(200)
    assert body["status"]["phase"] == "Active"
    assert body["spec"]["finalizers"] == ["kubernetes"]
    assert body["metadata"]["labels"]["kubernetes.io/metadata.name"] == namespace


async def test_a_new_namespace_gets_its_account_and_the_clusters_certificate(
    api: Api, backend: Backend, controllers: None, namespace: str
) -> None:
    for resource, name in ((SERVICEACCOUNTS, "default"), (CONFIGMAPS, "kube-root-ca.crt")):
        reply = await eventually(
            lambda resource=resource, name=name: api.get(resource, namespace, name),
            within_seconds=backend.patience_seconds,
            until=lambda reply: reply.status == 200,
        )
    assert "BEGIN CERTIFICATE" in reply.body["data"]["ca.crt"]


async def test_a_namespace_takes_everything_with_it(
    api: Api, backend: Backend, controllers: None, make: Maker
) -> None:
    await make.widget()
    await make.configmap()
    (await api.create(PODS, unschedulable_pod(make.namespace, "p"))).expect(201)
    (await api.create(LEASES, lease(make.namespace, "l"))).expect(201)
    body = (await api.delete(NAMESPACES, None, make.namespace)).expect(200)
    assert body["status"]["phase"] == "Terminating"
    await gone(api, backend, make.namespace)
    for resource in (WIDGETS, CONFIGMAPS, PODS, LEASES, SERVICEACCOUNTS):
        assert (await api.list(resource, make.namespace)).expect(200)["items"] == []


async def test_a_terminating_namespace_takes_nothing_new(
    api: Api, backend: Backend, controllers: None, make: Maker
) -> None:
    await make.widget("held", finalizers=[HOLD])
    await api.delete(NAMESPACES, None, make.namespace)
    status = (await api.create(WIDGETS, widget(make.namespace, "late"))).refused(403, "Forbidden")
    assert "because it is being terminated" in status["message"]
    assert status["details"]["causes"][0]["reason"] == "NamespaceTerminating"
    body = (await api.get(NAMESPACES, None, make.namespace)).expect(200)
    assert body["status"]["phase"] == "Terminating"
    (await api.patch(WIDGETS, make.namespace, "held", {"metadata": {"finalizers": None}})).expect(200)
    await gone(api, backend, make.namespace)


async def test_the_default_namespace_stays(api: Api) -> None:
    (await api.delete(NAMESPACES, None, "default")).refused(403, "Forbidden")


async def test_kubectl_applies_and_deletes_a_namespace(kubectl: Kubectl, controllers: None) -> None:
    name = unique("conformance")
    obj = {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": name}}
    await kubectl.run("apply", "-f", "-", stdin=obj)
    output = await kubectl.run("get", "ns", name)
    assert output.lines[0].split() == ["NAME", "STATUS", "AGE"]
    assert output.lines[1].split()[:2] == [name, "Active"]
    await kubectl.run("delete", "ns", name)
    assert "NotFound" in await kubectl.refused("get", "ns", name)
