"""Pods as real processes on virtual nodes, against the real API server."""

from __future__ import annotations

import asyncio
import os
import re
import signal
import uuid
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any

import pytest

from controller.resources import CONFIGMAPS, EVENTS, NODES, PODS
from localcluster.kubelet.container import Isolation
from localcluster.kubelet.node_objects import POWER_ANNOTATION
from localcluster.paths import Home
from tests.localcluster.running import (
    Observer,
    Part,
    best_isolation,
    living,
    observing,
    running_cluster,
    shell,
    until_living,
    until_none_living,
)

pytestmark = pytest.mark.real

JSON = dict[str, Any]


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Home, Part]]:
    with running_cluster(
        tmp_path_factory.mktemp("cluster"), "--nodes", "2", "--cpus-per-node", "4"
    ) as running:
        yield running


@pytest.fixture
async def seen(cluster: tuple[Home, Part]) -> AsyncIterator[Observer]:
    async with observing(cluster[0]) as observer:
        # A node's first taint, of one that is not ready, goes a moment after the node is.
        await observer.until(lambda: not any(node["spec"].get("taints") for node in observer.nodes.list()))
        yield observer


@pytest.fixture
def name() -> str:
    return f"p-{uuid.uuid4().hex[:12]}"


def terminated(pod: JSON, index: int = 0) -> JSON:
    state: JSON = pod["status"]["containerStatuses"][index]["state"]["terminated"]
    return state


async def events_of(seen: Observer, name: str, reason: str) -> list[str]:
    """Messages of a Pod's Events; they are written in the background, so wait for one."""
    for _attempt in range(6000):
        listed = await seen.client.get(EVENTS.path("default"))
        messages = [
            event["message"]
            for event in listed["items"]
            if event["involvedObject"]["name"] == name and event["reason"] == reason
        ]
        if messages:
            return messages
        await asyncio.sleep(0.05)
    return []


async def test_a_pod_runs_and_succeeds(seen: Observer, name: str) -> None:
    await seen.create(name, shell("echo hello"))
    pod = await seen.until_phase(name, "Succeeded")
    assert terminated(pod)["reason"] == "Completed"
    assert pod["status"]["podIP"].startswith("127.")
    assert pod["status"]["hostIP"] == "127.0.0.1"
    assert seen.log(name) == ["hello"]
    assert await events_of(seen, name, "Scheduled")
    assert await events_of(seen, name, "Started") == ["Started container main"]


async def test_a_missing_config_map_is_waited_for(seen: Observer, name: str) -> None:
    reference = {"configMapKeyRef": {"name": name, "key": "KEY"}}
    await seen.create(name, shell("echo $KEY", env=[{"name": "KEY", "valueFrom": reference}]))

    def waiting() -> JSON | None:
        statuses = seen.pod(name).get("status", {}).get("containerStatuses") or [{}]
        reason: JSON | None = statuses[0].get("state", {}).get("waiting")
        return reason if reason and reason["reason"] == "CreateContainerConfigError" else None

    assert (await seen.until(waiting))["message"] == f'configmap "{name}" not found'
    content = {"metadata": {"name": name}, "data": {"KEY": "late"}}
    await seen.client.create(CONFIGMAPS.path("default"), content)
    await seen.until_phase(name, "Succeeded")
    assert seen.log(name) == ["late"]


@pytest.mark.skipif(best_isolation() is Isolation.NONE, reason="this host allows no mount namespaces")
async def test_volumes_are_mounted(seen: Observer, name: str, tmp_path: Path) -> None:
    data = {"a.txt": "alpha", "b.txt": "beta"}
    await seen.client.create(CONFIGMAPS.path("default"), {"metadata": {"name": name}, "data": data})
    host = tmp_path / "host"
    host.mkdir()
    (host / "file").write_text("from the host\n")
    labels = {"path": "labels", "fieldRef": {"fieldPath": "metadata.name"}}
    volumes = [
        {"name": "map", "configMap": {"name": name, "items": [{"key": "b.txt", "path": "sub/renamed"}]}},
        {"name": "host", "hostPath": {"path": str(host)}},
        {
            "name": "all",
            "projected": {"sources": [{"configMap": {"name": name}}, {"downwardAPI": {"items": [labels]}}]},
        },
    ]
    mounts = [
        {"name": "map", "mountPath": f"{tmp_path}/map"},
        {"name": "host", "mountPath": f"{tmp_path}/elsewhere", "readOnly": True},
        {"name": "all", "mountPath": f"{tmp_path}/all"},
    ]
    account = "/var/run/secrets/kubernetes.io/serviceaccount"
    script = (
        f"cd {tmp_path}; cat map/sub/renamed; echo; cat elsewhere/file; cat all/a.txt all/labels; echo; "
        f"touch elsewhere/x 2>/dev/null || echo read-only; ls {account}; cat {account}/namespace"
    )
    await seen.create(name, shell(script, volumeMounts=mounts), volumes=volumes)
    await seen.until_phase(name, "Succeeded")
    logged = seen.log(name)
    assert logged == [
        "beta",
        "from the host",
        f"alpha{name}",
        "read-only",
        "ca.crt",
        "namespace",
        "token",
        "default",
    ]


async def test_temporary_files_go_with_the_pod(seen: Observer, name: str) -> None:
    await seen.create(name, shell('touch "$TMPDIR/left"; echo "$TMPDIR"'))
    await seen.until_phase(name, "Succeeded")
    folder = Path(seen.log(name)[0])
    assert (folder / "left").exists()
    assert len(str(folder)) < 76, "there is room for a Unix socket"
    await seen.delete(name)
    await seen.until_gone(name)
    async with asyncio.timeout(300):
        while folder.exists():  # noqa: ASYNC110, ASYNC240 - a folder sends no events
            await asyncio.sleep(0.02)


async def test_sigterm_lets_a_container_say_goodbye(seen: Observer, name: str, tmp_path: Path) -> None:
    note = tmp_path / "note"
    polite = shell(
        f"trap 'echo term >> {note}; exit 0' TERM; echo ready; while :; do sleep 0.05; done",
        lifecycle={"preStop": {"exec": {"command": ["sh", "-c", f"echo prestop >> {note}"]}}},
    )
    await seen.create(name, polite, terminationGracePeriodSeconds=300)
    await seen.until_phase(name, "Running")
    while seen.log(name) != ["ready"]:  # noqa: ASYNC110 - the log is a file
        await asyncio.sleep(0.02)
    await seen.delete(name)
    await seen.until_gone(name)
    assert note.read_text() == "term\n"
    assert await events_of(seen, name, "Ignored") == ["The embedded cluster ignores lifecycle of containers"]


async def test_exit_of_a_container_that_outlived_its_grace_is_reported(seen: Observer, name: str) -> None:
    stubborn = shell(f"trap '' TERM; echo {name}; while :; do sleep 0.1; done")
    await seen.create(name, stubborn, terminationGracePeriodSeconds=1)
    await seen.until_phase(name, "Running")
    while seen.log(name) != [name]:  # noqa: ASYNC110 - the log is a file
        await asyncio.sleep(0.02)
    await seen.client.patch(PODS.path("default", name), {"spec": {"activeDeadlineSeconds": 1}})
    pod = await seen.until_phase(name, "Failed")
    assert (pod["status"]["reason"], terminated(pod)["exitCode"]) == ("DeadlineExceeded", 137)


async def set_power(seen: Observer, node: str, power: str | None) -> None:
    await seen.client.patch(NODES.path(name=node), {"metadata": {"annotations": {POWER_ANNOTATION: power}}})


async def test_power_off_kills_silently_and_power_on_tells(seen: Observer, name: str) -> None:
    mine = {"nodeSelector": {"kubernetes.io/hostname": "node-1"}}
    long = shell("setsid sleep 1000 & sleep 1000", env=[{"name": "M", "value": name}])
    await seen.create(name, long, **mine)
    await seen.until_phase(name, "Running")
    await until_living(name, 2)
    await set_power(seen, "node-1", "off")
    assert await until_none_living(name) == []
    await set_power(seen, "node-1", None)
    pod = await seen.until_phase(name, "Failed")
    # Had its end been reported, its reason would be Error.
    assert (terminated(pod)["exitCode"], terminated(pod)["reason"]) == (137, "ContainerStatusUnknown")
    await seen.create(f"{name}-2", shell("exit 0"), **mine)
    await seen.until_phase(f"{name}-2", "Succeeded")


@pytest.mark.parametrize("isolation", ["best", "none"])
async def test_nothing_survives_killed_nodes_and_lost_pods_are_told(tmp_path: Path, isolation: str) -> None:
    arguments = ["--nodes", "1"] + (["--isolation", "none"] if isolation == "none" else [])
    marker = f"M{uuid.uuid4().hex}"
    never, again = f"never-{marker[-8:]}", f"again-{marker[-8:]}"  # others on this machine may test the same
    family = shell(
        "setsid sleep 1000 & (setsid sh -c 'setsid sleep 1000 & exit' &); sleep 1000",
        env=[{"name": "M", "value": marker}],
        resources={"limits": {"memory": "64Mi"}},
    )
    with running_cluster(tmp_path, *arguments) as (home, nodes):
        async with observing(home) as seen:
            await seen.create(never, family)
            await seen.create(again, family, restartPolicy="Always")
            await seen.until(lambda: seen.phase(never) == seen.phase(again) == "Running")
            await until_living(marker, 8)
            nodes.end(signal.SIGKILL)
            assert await until_none_living(marker) == []
            nodes.start()
            lost = terminated(await seen.until_phase(never, "Failed"))
            assert (lost["exitCode"], lost["reason"]) == (137, "ContainerStatusUnknown")
            await seen.until(lambda: seen.pod(again)["status"]["containerStatuses"][0]["restartCount"] == 1)
            await seen.until_phase(again, "Running")
            first_family = set(await until_living(marker, 4))
            shim = next(pid for pid in living(f"default/{again}/main") if pid not in living(marker))
            os.kill(shim, signal.SIGKILL)
            await seen.until(lambda: seen.pod(again)["status"]["containerStatuses"][0]["restartCount"] == 2)
            last = seen.pod(again)["status"]["containerStatuses"][0]["lastState"]["terminated"]
            assert last["exitCode"] == 137
            await seen.until_phase(again, "Running")
            while first_family & set(living(marker)):  # noqa: ASYNC110 - /proc sends no events
                await asyncio.sleep(0.02)
            await until_living(marker, 4)
        nodes.end()
        assert await until_none_living(marker) == []
        groups = re.findall(r"memory limits are kept .*folder=(.*)", home.process_log("nodes").read_text())
        assert not [folder for folder in groups if os.access(folder, os.F_OK)]
