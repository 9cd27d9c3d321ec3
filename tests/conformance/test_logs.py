"""Logs of Pods that run: whole, in part, followed to the end, and refused where there are none."""

from __future__ import annotations

import re
from typing import Any

import pytest

from controller.resources import PODS

from .kubectl import Kubectl
from .objects import container, pod
from .rawapi import Api
from .waiting import eventually

JSON = dict[str, Any]


pytestmark = [pytest.mark.real, pytest.mark.usefixtures("nodes")]


async def reaches(api: Api, namespace: str, name: str, *phases: str) -> JSON:
    async def probe() -> JSON:
        return (await api.get(PODS, namespace, name)).expect(200)

    return await eventually(probe, until=lambda body: body["status"].get("phase") in phases)


async def finished(api: Api, namespace: str, *containers: JSON) -> JSON:
    obj = pod(namespace, "p", *containers, restartPolicy="Never", terminationGracePeriodSeconds=1)
    (await api.create(PODS, obj)).expect(201)
    return await reaches(api, namespace, "p", "Succeeded", "Failed")


async def logs(api: Api, namespace: str, **query: str) -> Any:
    return await api.call("GET", PODS.path(namespace, "p", "log"), query=query, accept="*/*")


async def test_logs_of_a_finished_pod(api: Api, namespace: str) -> None:
    await finished(api, namespace, container(script="echo one; echo two >&2; printf three"))
    reply = await logs(api, namespace)
    assert reply.status == 200
    assert reply.headers["Content-Type"].startswith("text/plain")
    assert sorted(reply.text.splitlines()) == ["one", "three", "two"]
    assert (await logs(api, namespace, tailLines="0")).text == ""
    assert len((await logs(api, namespace, tailLines="2")).text.splitlines()) == 2
    assert len((await logs(api, namespace, limitBytes="5")).text) == 5
    stamped = (await logs(api, namespace, timestamps="true")).text.splitlines()
    assert all(
        re.match(r"^\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d+(Z|[+-]\d\d:\d\d) \w+$", line) for line in stamped
    )
    assert (await logs(api, namespace, sinceTime="2100-01-01T00:00:00Z")).text == ""


async def test_logs_of_the_run_before_a_restart(kubectl: Kubectl, api: Api, namespace: str) -> None:
    main = container(script="echo tried; exit 3")
    obj = pod(namespace, "p", main, restartPolicy="OnFailure", terminationGracePeriodSeconds=1)
    (await api.create(PODS, obj)).expect(201)

    async def status() -> JSON:
        found = (await api.get(PODS, namespace, "p")).expect(200)["status"].get("containerStatuses")
        return found[0] if found else {"restartCount": 0, "state": {}}

    again = await eventually(status, until=lambda s: s["restartCount"] >= 1 and "lastState" in s)
    assert again["lastState"]["terminated"]["exitCode"] == 3
    output = await kubectl.run("logs", "p", "--previous", namespace=namespace)
    assert output.stdout == "tried\n"
