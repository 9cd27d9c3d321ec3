"""Namespaces: what comes with a new one, and what goes with an old one."""

from __future__ import annotations

from typing import Any

import pytest

from .backend import Backend
from .conftest import Maker
from .objects import lease, unschedulable_pod, widget
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
