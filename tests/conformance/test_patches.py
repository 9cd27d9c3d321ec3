"""JSON patch, merge patch and strategic merge patch, and what kubectl builds on them."""

from __future__ import annotations

from typing import Any

import pytest

from .conftest import Maker
from .kubectl import Kubectl
from .objects import container, idle_deployment, unschedulable_pod, widget
from .rawapi import JSON_PATCH, MERGE_PATCH, STRATEGIC_PATCH, Api, revision
from .resources import (
    PODS,
    WG,
    WIDGETS,
)

pytestmark = pytest.mark.real

JSON = dict[str, Any]


async def patched(api: Api, make: Maker, patch: Any, content_type: str = MERGE_PATCH) -> JSON:
    return (await api.patch(WIDGETS, make.namespace, "w", patch, content_type=content_type)).expect(200)


async def test_a_patch_that_changes_nothing_writes_nothing(api: Api, make: Maker) -> None:
    made = await make.widget("w", {"size": 5})
    since = (await api.list(WIDGETS, make.namespace)).body["metadata"]["resourceVersion"]
    same = await patched(api, make, {"spec": {"size": 5}})
    assert revision(same) == revision(made)
    async with api.watch(WIDGETS, make.namespace, resourceVersion=since) as watch:
        await patched(api, make, {"spec": {"size": 6}})
        event = await watch.next()
    assert event["object"]["spec"]["size"] == 6


async def test_strategic_merge_patch_of_a_custom_resource_is_unsupported(api: Api, make: Maker) -> None:
    await make.widget()
    reply = await api.patch(WIDGETS, make.namespace, "w", {}, content_type=STRATEGIC_PATCH)
    message = reply.refused(415, "UnsupportedMediaType")["message"]
    assert JSON_PATCH in message
    assert MERGE_PATCH in message


def env(**values: str) -> list[JSON]:
    return [{"name": name, "value": value} for name, value in values.items()]


async def test_a_running_pods_command_cannot_be_changed(api: Api, make: Maker) -> None:
    (await api.create(PODS, unschedulable_pod(make.namespace, "p"))).expect(201)
    patch = {"spec": {"containers": [{"name": "main", "command": ["/bin/false"]}]}}
    reply = await api.patch(PODS, make.namespace, "p", patch, content_type=STRATEGIC_PATCH)
    assert "spec" in reply.refused(422, "Invalid")["message"]
    image = {"spec": {"containers": [{"name": "main", "image": "other"}]}}
    reply = await api.patch(PODS, make.namespace, "p", image, content_type=STRATEGIC_PATCH)
    assert reply.expect(200)["spec"]["containers"][0]["image"] == "other"


async def test_kubectl_apply_adds_changes_and_removes(kubectl: Kubectl, namespace: str) -> None:
    first = widget(namespace, "w", {"size": 5, "attributes": {"x": "1", "y": "2"}})
    assert "created" in (await kubectl.run("apply", "-f", "-", stdin=first)).stdout
    assert "unchanged" in (await kubectl.run("apply", "-f", "-", stdin=first)).stdout
    second = widget(namespace, "w", {"color": "blue", "attributes": {"y": "3"}}, labels={"new": "yes"})
    assert "configured" in (await kubectl.run("apply", "-f", "-", stdin=second)).stdout
    got = (await kubectl.run("get", WG, "w", "-o", "json", namespace=namespace)).json
    assert got["spec"]["attributes"] == {"y": "3"}
    assert (got["spec"]["size"], got["spec"]["color"]) == (3, "blue")
    assert got["metadata"]["labels"] == {"new": "yes"}


async def test_kubectl_apply_of_a_built_in_is_three_way_too(kubectl: Kubectl, namespace: str) -> None:
    first = idle_deployment(namespace, "d", container("a", env=env(X="1", Y="2")), container("b"))
    await kubectl.run("apply", "-f", "-", stdin=first)
    await kubectl.run("label", "deployment", "d", "kept=yes", namespace=namespace)
    second = idle_deployment(namespace, "d", container("a", env=env(Y="3", Z="4")))
    assert "configured" in (await kubectl.run("apply", "-f", "-", stdin=second)).stdout
    got = (await kubectl.run("get", "deployment", "d", "-o", "json", namespace=namespace)).json
    (only,) = got["spec"]["template"]["spec"]["containers"]
    assert sorted(only["env"], key=lambda e: e["name"]) == env(Y="3", Z="4")
    assert got["metadata"]["labels"]["kept"] == "yes"
