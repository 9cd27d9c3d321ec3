"""Logs of Pods that run: whole, in part, followed to the end, and refused where there are none."""

from __future__ import annotations

import re
from typing import Any

import pytest

from .conftest import Maker
from .kubectl import Kubectl
from .objects import container, pod, unschedulable_pod
from .rawapi import Api
from .resources import PODS
from .waiting import eventually

JSON = dict[str, Any]

POD_START_SECONDS = 300.0

pytestmark = [pytest.mark.real, pytest.mark.usefixtures("nodes")]


async def reaches(api: Api, namespace: str, name: str, *phases: str) -> JSON:
    async def probe() -> JSON:
        return (await api.get(PODS, namespace, name)).expect(200)

    return await eventually(
        probe, within_seconds=POD_START_SECONDS, until=lambda body: body["status"].get("phase") in phases
    )


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


async def test_logs_of_one_of_several_containers(api: Api, namespace: str) -> None:
    await finished(api, namespace, container("a", "echo from a"), container("b", "echo from b"))
    assert (await logs(api, namespace, container="b")).text == "from b\n"
    message = (await logs(api, namespace)).refused(400, "BadRequest")["message"]
    assert "a container name must be specified for pod p, choose one of: [a b]" in message
    message = (await logs(api, namespace, container="c")).refused(400, "BadRequest")["message"]
    assert "container c is not valid for pod p" in message


async def test_there_are_no_logs_before_the_start(api: Api, namespace: str) -> None:
    (await logs(api, namespace)).refused(404, "NotFound")
    (await api.create(PODS, unschedulable_pod(namespace, "p"))).expect(201)
    reply = await logs(api, namespace)
    assert (reply.status, reply.text) == (204, "")


async def test_kubectl_follows_logs_to_the_end(kubectl: Kubectl, api: Api, make: Maker) -> None:
    script = "echo first; i=0; while [ $i -lt 30 ]; do i=$((i+1)); echo line $i; sleep 0.05; done; echo last"
    obj = pod(make.namespace, "p", container(script=script), restartPolicy="Never")
    (await api.create(PODS, obj)).expect(201)
    await reaches(api, make.namespace, "p", "Running", "Succeeded")
    async with kubectl.stream("logs", "-f", "p", namespace=make.namespace) as output:
        lines = await output.until("last", POD_START_SECONDS)
        assert await output.process.wait() == 0
    assert lines == ["first", *(f"line {number}" for number in range(1, 31)), "last"]
    assert (await kubectl.run("logs", "p", "--tail=1", namespace=make.namespace)).stdout == "last\n"


async def test_kubectl_logs_several_containers_and_by_selector(
    kubectl: Kubectl, api: Api, namespace: str
) -> None:
    await finished(api, namespace, container("a", "echo from a"), container("b", "echo from b"))
    output = await kubectl.run("logs", "p", "--all-containers", namespace=namespace)
    assert sorted(output.lines) == ["from a", "from b"]
    output = await kubectl.run("logs", "p", namespace=namespace)
    assert "Defaulted container" in output.stderr
    await api.patch(PODS, namespace, "p", {"metadata": {"labels": {"app": "x"}}})
    output = await kubectl.run("logs", "-l", "app=x", "-c", "b", "--prefix", namespace=namespace)
    assert output.stdout == "[pod/p/b] from b\n"


async def test_logs_of_the_run_before_a_restart(kubectl: Kubectl, api: Api, namespace: str) -> None:
    main = container(script="echo tried; exit 3")
    obj = pod(namespace, "p", main, restartPolicy="OnFailure", terminationGracePeriodSeconds=1)
    (await api.create(PODS, obj)).expect(201)

    async def status() -> JSON:
        found = (await api.get(PODS, namespace, "p")).expect(200)["status"].get("containerStatuses")
        return found[0] if found else {"restartCount": 0, "state": {}}

    again = await eventually(
        status, within_seconds=POD_START_SECONDS, until=lambda s: s["restartCount"] >= 1 and "lastState" in s
    )
    assert again["lastState"]["terminated"]["exitCode"] == 3
    output = await kubectl.run("logs", "p", "--previous", namespace=namespace)
    assert output.stdout == "tried\n"


async def test_a_pod_reports_how_it_ended(api: Api, namespace: str) -> None:
    body = await finished(api, namespace, container(script="exit 7"))
    assert body["status"]["phase"] == "Failed"
    ended = body["status"]["containerStatuses"][0]["state"]["terminated"]
    assert (ended["exitCode"], ended["reason"]) == (7, "Error")


@pytest.mark.parametrize(
    ("script", "message"), [("echo why >/dev/termination-log", "why\n"), ("exit 1", None)]
)
async def test_a_container_leaves_a_termination_message_however_it_ends(
    api: Api, namespace: str, script: str, message: str | None
) -> None:
    body = await finished(api, namespace, container(script=script))
    ended = body["status"]["containerStatuses"][0]["state"]["terminated"]
    assert ended.get("message") == message


async def test_a_running_pod_is_deleted_gracefully(api: Api, namespace: str) -> None:
    obj = pod(namespace, "p", container(script="trap 'exit 0' TERM; while :; do sleep 0.1; done"))
    obj["spec"]["terminationGracePeriodSeconds"] = 20
    (await api.create(PODS, obj)).expect(201)
    await reaches(api, namespace, "p", "Running")
    body = (await api.delete(PODS, namespace, "p")).expect(200)
    assert body["metadata"]["deletionTimestamp"]
    assert body["metadata"]["deletionGracePeriodSeconds"] == 20
    await eventually(
        lambda: api.get(PODS, namespace, "p"), within_seconds=300, until=lambda reply: reply.status == 404
    )
