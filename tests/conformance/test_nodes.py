"""Nodes and the Pods on them, as kubectl shows and steers them."""

from __future__ import annotations

import re
from collections.abc import AsyncIterator
from typing import Any

import pytest

from .kubectl import Kubectl
from .objects import (
    container,
    pod,
    unschedulable_pod,
)
from .rawapi import Api, names
from .resources import EVENTS, NODES, PODS
from .waiting import eventually

JSON = dict[str, Any]

POD_START_SECONDS = 300.0

pytestmark = [pytest.mark.real, pytest.mark.usefixtures("nodes")]


@pytest.fixture
async def node(embedded: Any, api: Api) -> AsyncIterator[str]:
    """A node of the embedded cluster, free of the test's traces afterwards; nobody else's is touched."""
    name = names((await api.list(NODES)).expect(200))[0]
    yield name
    patch = {"spec": {"unschedulable": None, "taints": None}}
    (await api.patch(NODES, None, name, patch)).expect(200)


async def test_kubectl_cordons(kubectl: Kubectl, node: str) -> None:
    await kubectl.run("cordon", node)
    assert "SchedulingDisabled" in (await kubectl.run("get", "node", node)).stdout
    await kubectl.run("uncordon", node)
    assert "SchedulingDisabled" not in (await kubectl.run("get", "node", node)).stdout


async def finished(api: Api, namespace: str, script: str, **fields: Any) -> JSON:
    ends = pod(namespace, "p", container(script=script, **fields), restartPolicy="Never")
    (await api.create(PODS, ends)).expect(201)

    async def probe() -> JSON:
        return (await api.get(PODS, namespace, "p")).expect(200)

    return await eventually(
        probe,
        within_seconds=POD_START_SECONDS,
        until=lambda body: body["status"].get("phase") in ("Succeeded", "Failed"),
    )


@pytest.mark.parametrize(("script", "status"), [("exit 0", "Completed"), ("exit 3", "Error")])
async def test_kubectl_shows_how_a_pod_ended(
    kubectl: Kubectl, api: Api, namespace: str, script: str, status: str
) -> None:
    await finished(api, namespace, script)
    listed = await kubectl.run("get", "pod", "p", "-o", "wide", namespace=namespace)
    assert listed.lines[0].split()[:5] == ["NAME", "READY", "STATUS", "RESTARTS", "AGE"]
    assert listed.lines[1].split()[:4] == ["p", "0/1", status, "0"]
    described = (await kubectl.run("describe", "pod", "p", namespace=namespace)).stdout
    assert re.search(r"State: +Terminated", described)
    assert re.search(rf"Reason: +{status}", described)
    assert re.search(rf"Exit Code: +{script.split()[1]}", described)
    assert "Scheduled" in described


async def test_a_pod_that_fits_nowhere_says_why(api: Api, namespace: str) -> None:
    (await api.create(PODS, unschedulable_pod(namespace, "p"))).expect(201)

    async def condition() -> JSON | None:
        status = (await api.get(PODS, namespace, "p")).expect(200)["status"]
        return next((c for c in status.get("conditions", []) if c["type"] == "PodScheduled"), None)

    said = await eventually(condition, within_seconds=POD_START_SECONDS)
    assert said
    assert (said["status"], said["reason"]) == ("False", "Unschedulable")
    assert "nodes are available" in said["message"]

    async def events() -> list[JSON]:
        selector = "involvedObject.name=p,reason=FailedScheduling"
        return (await api.list(EVENTS, namespace, fieldSelector=selector)).expect(200)["items"]

    (event, *_) = await eventually(events, within_seconds=POD_START_SECONDS)
    assert event["type"] == "Warning"
