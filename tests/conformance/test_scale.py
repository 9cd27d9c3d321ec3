"""The scale subresource, and `kubectl scale`."""

from __future__ import annotations

from typing import Any

import pytest

from .conftest import Maker
from .kubectl import Kubectl
from .rawapi import Api
from .resources import (
    WG,
    WIDGETS,
)

pytestmark = pytest.mark.real

JSON = dict[str, Any]


async def test_scale_shows_what_the_paths_name(api: Api, make: Maker) -> None:
    made = await make.widget("w", {"replicas": 4})
    status = {"status": {"replicas": 2, "selector": "app=w"}}
    changed = (await api.patch(WIDGETS, make.namespace, "w", status, sub="status")).expect(200)
    scale = (await api.get(WIDGETS, make.namespace, "w", sub="scale")).expect(200)
    assert (scale["kind"], scale["apiVersion"]) == ("Scale", "autoscaling/v1")
    assert scale["spec"] == {"replicas": 4}
    assert scale["status"] == {"replicas": 2, "selector": "app=w"}
    for key in ("name", "namespace", "uid"):
        assert scale["metadata"][key] == made["metadata"][key]
    assert scale["metadata"]["resourceVersion"] == changed["metadata"]["resourceVersion"]


async def test_an_update_of_scale_changes_the_object(api: Api, make: Maker) -> None:
    made = await make.widget("w", {"replicas": 4, "size": 5})
    scale = (await api.get(WIDGETS, make.namespace, "w", sub="scale")).expect(200)
    scale["spec"]["replicas"] = 6
    assert (await api.put(WIDGETS, scale, sub="scale")).expect(200)["spec"]["replicas"] == 6
    body = (await api.get(WIDGETS, make.namespace, "w")).expect(200)
    assert (body["spec"]["replicas"], body["spec"]["size"]) == (6, 5)
    assert body["metadata"]["generation"] == made["metadata"]["generation"] + 1
    (await api.put(WIDGETS, scale, sub="scale")).refused(409, "Conflict")


async def test_kubectl_scales(kubectl: Kubectl, api: Api, make: Maker) -> None:
    await make.widget("w", {"replicas": 2})
    output = await kubectl.run("scale", f"{WG}/w", "--replicas=5", namespace=make.namespace)
    assert "scaled" in output.stdout
    assert (await api.get(WIDGETS, make.namespace, "w")).body["spec"]["replicas"] == 5
    (await api.patch(WIDGETS, make.namespace, "w", {"spec": {"max": 5}})).expect(200)
    beyond = await kubectl.refused("scale", f"{WG}/w", "--replicas=6", namespace=make.namespace)
    assert "replicas must not exceed max" in beyond
    arguments = ("scale", f"{WG}/w", "--current-replicas=2", "--replicas=6")
    assert "5" in await kubectl.refused(*arguments, namespace=make.namespace)
    shown = await kubectl.run(
        "get", WG, "w", "--subresource=scale", "-o", "jsonpath={.spec.replicas}", namespace=make.namespace
    )
    assert shown.stdout == "5"
