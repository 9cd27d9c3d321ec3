"""Pods: what a new one is given, what may change, its binding and its logs."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from localcluster.apiserver.pods import qos_class
from localcluster.paths import Home
from tests.localcluster.apiserver.api import PODS, STRATEGIC, Api, pod

pytestmark = pytest.mark.real

BINDING = {
    "apiVersion": "v1",
    "kind": "Binding",
    "metadata": {"name": "one"},
    "target": {"apiVersion": "v1", "kind": "Node", "name": "node-0"},
}


async def test_a_new_pod_is_completed(api: Api) -> None:
    created = await api.created(PODS, pod("one"))
    spec = created["spec"]
    assert (spec["serviceAccountName"], spec["restartPolicy"], spec["dnsPolicy"]) == (
        "default",
        "Always",
        "ClusterFirst",
    )
    assert (spec["terminationGracePeriodSeconds"], spec["priority"], spec["schedulerName"]) == (
        30,
        0,
        "default-scheduler",
    )
    assert {toleration["key"]: toleration["tolerationSeconds"] for toleration in spec["tolerations"]} == {
        "node.kubernetes.io/not-ready": 300,
        "node.kubernetes.io/unreachable": 300,
    }
    assert spec["containers"][0]["imagePullPolicy"] == "IfNotPresent"
    assert created["status"] == {"phase": "Pending", "qosClass": "BestEffort"}


@pytest.mark.parametrize(
    ("image", "policy"),
    [
        ("a", "Always"),
        ("a:latest", "Always"),
        ("a:1", "IfNotPresent"),
        ("reg:5000/a", "Always"),
        ("a@sha256:b", "IfNotPresent"),
    ],
)
async def test_the_pull_policy_follows_the_tag(api: Api, image: str, policy: str) -> None:
    created = await api.created(PODS, pod("one", containers=[{"name": "main", "image": image}]))
    assert created["spec"]["containers"][0]["imagePullPolicy"] == policy


async def test_limits_are_requests_where_none_are_given(api: Api) -> None:
    resources = {"limits": {"cpu": "2", "memory": "1Gi"}, "requests": {"cpu": "1"}}
    containers = [{"name": "main", "image": "a", "resources": resources}]
    created = await api.created(PODS, pod("one", containers=containers))
    assert created["spec"]["containers"][0]["resources"]["requests"] == {"cpu": "1", "memory": "1Gi"}
    assert created["status"]["qosClass"] == "Burstable"


def test_quality_of_service_classes() -> None:
    def spec(*resources: dict[str, Any]) -> dict[str, Any]:
        return {"containers": [{"name": "c", "resources": each} for each in resources]}

    full = {"cpu": "1", "memory": "1Gi"}
    assert qos_class(spec({}, {})) == "BestEffort"
    assert qos_class(spec({"limits": full, "requests": full}, {"limits": full})) == "Guaranteed"
    assert qos_class(spec({"limits": full}, {})) == "Burstable"


async def test_what_is_wrong_with_a_pod_is_told_by_path(api: Api) -> None:
    containers = [
        {"name": "main", "image": "a", "volumeMounts": [{"name": "none", "mountPath": "/x"}]},
        {"name": "main", "image": "a"},
        {"name": "third"},
    ]
    answer = await api.post(PODS, pod("one", containers=containers))
    fields = {cause["field"] for cause in answer.body["details"]["causes"]}
    assert fields == {
        "spec.containers[0].volumeMounts[0].name",
        "spec.containers[1].name",
        "spec.containers[2].image",
    }
    answer = await api.post(PODS, pod("one", serviceAccountName="nobody"))
    assert answer.code == 403 and 'serviceaccount "nobody" not found' in answer.message
    answer = await api.post(PODS, pod("one", priorityClassName="nothing"))
    assert answer.code == 403 and "no PriorityClass with name nothing" in answer.message


async def test_a_pods_spec_is_fixed_but_for_a_few_fields(api: Api) -> None:
    await api.created(PODS, pod("one"))
    image = {"spec": {"containers": [{"name": "main", "image": "busybox:2"}]}}
    assert (await api.patch(f"{PODS}/one", image, STRATEGIC)).code == 200
    command = {"spec": {"containers": [{"name": "main", "command": ["x"]}]}}
    refused = await api.patch(f"{PODS}/one", command, STRATEGIC)
    assert refused.code == 422 and "pod updates may not change fields other than" in refused.message
    more = {"spec": {"tolerations": [{"key": "a", "operator": "Exists"}]}}
    assert (await api.patch(f"{PODS}/one", more, STRATEGIC)).code in (200, 422)
    assert (await api.patch(f"{PODS}/one", {"spec": {"activeDeadlineSeconds": 5}})).code == 200


async def test_a_pod_is_bound_once(api: Api) -> None:
    await api.created(PODS, pod("one"))
    assert (await api.post(f"{PODS}/one/binding", BINDING)).code == 201
    bound = (await api.get(f"{PODS}/one")).body
    assert bound["spec"]["nodeName"] == "node-0"
    assert bound["status"]["conditions"][0]["type"] == "PodScheduled"
    again = await api.post(f"{PODS}/one/binding", BINDING)
    assert again.code == 409 and "already assigned to node" in again.message
    assert (await api.get(PODS, fieldSelector="spec.nodeName=node-0")).names == ["one"]


async def test_interactive_subresources_are_refused_in_a_sentence(api: Api) -> None:
    await api.created(PODS, pod("one"))
    for name in ("exec", "attach", "portforward"):
        answer = await api.get(f"{PODS}/one/{name}")
        assert answer.code == 405 and f"pods/{name}" in answer.message
    assert (await api.get(f"{PODS}/one/nonsense")).code == 404


def line(text: str, *, second: int = 0, tag: str = "F") -> str:
    return f"2026-01-01T00:00:{second:02}.123456789Z stdout {tag} {text}\n"


async def running_pod(api: Api, home: Home, *containers: str, restarts: int = 0) -> Path:
    """A Pod that runs as far as the API server knows; the path of its first container's log."""
    specs = [{"name": name, "image": "a"} for name in containers]
    created = await api.created(PODS, pod("one", containers=specs))
    await api.post(f"{PODS}/one/binding", BINDING)
    await report(api, containers[0], {"running": {}}, restarts)
    path = home.container_log(created["metadata"]["uid"], containers[0], restarts)
    path.parent.mkdir(parents=True)
    return path


async def report(api: Api, container: str, state: dict[str, Any], restarts: int = 0) -> None:
    status = {"name": container, "state": state, "restartCount": restarts, "ready": False, "image": "a"}
    patch = {"status": {"containerStatuses": [{**status, "imageID": ""}]}}
    assert (await api.patch(f"{PODS}/one/status", patch)).code == 200


async def test_logs_are_cut_as_asked(api: Api, home: Home) -> None:
    path = await running_pod(api, home, "main")
    parts = [line("one"), line("tw", second=5, tag="P"), line("o", second=5), line("three", second=9)]
    path.write_text("".join(parts))
    log = f"{PODS}/one/log"
    assert (await api.get(log)).body == b"one\ntwo\nthree\n"
    assert (await api.get(log, tailLines=1)).body == b"three\n"
    assert (await api.get(log, tailLines=0)).body == b""
    assert (await api.get(log, tailLines=99)).body == b"one\ntwo\nthree\n"
    assert (await api.get(log, limitBytes=6)).body == b"one\ntw"
    assert (await api.get(log, sinceTime="2026-01-01T00:00:06Z")).body == b"three\n"
    assert (await api.get(log, sinceSeconds=5)).body == b""
    stamped = (await api.get(log, timestamps="true", tailLines=1)).body
    assert stamped == b"2026-01-01T00:00:09.123456789Z three\n"


async def test_a_followed_log_ends_with_its_container(api: Api, home: Home) -> None:
    path = await running_pod(api, home, "main")
    path.write_text(line("one"))
    async with api.watch(f"{PODS}/one/log", follow="true") as following:
        assert await following.line() == b"one\n"
        with path.open("a") as file:
            file.write(line("two"))
        assert await following.line() == b"two\n"
        await report(api, "main", {"terminated": {"exitCode": 0}})
        assert await following.rest() == []


async def test_the_log_of_an_earlier_run(api: Api, home: Home) -> None:
    path = await running_pod(api, home, "main", restarts=1)
    path.write_text(line("second run"))
    path.with_name("0.log").write_text(line("first run"))
    assert (await api.get(f"{PODS}/one/log")).body == b"second run\n"
    assert (await api.get(f"{PODS}/one/log", previous="true")).body == b"first run\n"


async def test_requests_for_logs_that_there_are_not_are_explained(api: Api, home: Home) -> None:
    await running_pod(api, home, "main", "side")
    log = f"{PODS}/one/log"
    assert (await api.get(log)).message == (
        "a container name must be specified for pod one, choose one of: [main side]"
    )
    assert (await api.get(log, container="none")).message == "container none is not valid for pod one"
    assert (await api.get(log, container="main", previous="true")).message == (
        'previous terminated container "main" in pod "one" not found'
    )
    assert (await api.get(log, container="side")).message == (
        'container "side" in pod "one" is waiting to start: ContainerCreating'
    )
    assert (await api.get(log, container="main")).body == b""
    assert (await api.get(f"{PODS}/none/log")).code == 404
