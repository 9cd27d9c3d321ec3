"""Silent nodes are marked and their Pods evicted; a node that we could not hear is not."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from controller.resources import LEASES, NODES, PODS
from localcluster.client.api import STRATEGIC_PATCH
from localcluster.client.clock import utc_now
from localcluster.client.informer import Informer
from localcluster.client.recorder import Recorder
from localcluster.kubelet.heartbeat import LEASE_NAMESPACE, renew_lease
from localcluster.kubelet.node_objects import NodeShape, new_node, node_status
from localcluster.node_lifecycle import (
    NodeLifecycle,
    eviction_delay_seconds,
    is_silent,
    wanted_taints,
)
from localcluster.paths import Home
from tests.localcluster.running import Observer, Part, observing, pod, shell

JSON = dict[str, Any]
NOW = "2026-01-01T00:00:00Z"
times = st.floats(0, 1000)


@given(times, times, times)
def test_a_node_is_silent_only_while_we_listen(pulse: float, listening: float, now: float) -> None:
    if is_silent(pulse, listening, now, 40):
        assert now - pulse > 40
        assert now - listening > 40


def node(ready: str, *taints: JSON) -> JSON:
    return {"spec": {"taints": list(taints)}, "status": {"conditions": [{"type": "Ready", "status": ready}]}}


FOREIGN = {"key": "mine", "effect": "NoSchedule"}


@pytest.mark.parametrize(
    ("ready", "key"),
    [("Unknown", "node.kubernetes.io/unreachable"), ("False", "node.kubernetes.io/not-ready")],
)
def test_taints_follow_the_ready_condition_and_spare_others(ready: str, key: str) -> None:
    taints = wanted_taints(node(ready, FOREIGN), NOW)
    assert taints[0] == FOREIGN
    assert [(taint["key"], taint["effect"]) for taint in taints[1:]] == [
        (key, "NoSchedule"),
        (key, "NoExecute"),
    ]
    assert wanted_taints(node(ready, *taints), "later") == taints
    assert wanted_taints(node("True", *taints), NOW) == [FOREIGN]


def tolerating(*tolerations: JSON) -> JSON:
    return {"spec": {"tolerations": list(tolerations)}}


def test_the_shortest_toleration_decides_when_a_pod_must_go() -> None:
    taint = {"key": "k", "effect": "NoExecute"}
    exists = {"key": "k", "operator": "Exists"}
    assert eviction_delay_seconds(tolerating(), [taint]) == 0
    assert eviction_delay_seconds(tolerating(), [FOREIGN]) is None
    assert eviction_delay_seconds(tolerating(exists), [taint]) is None
    assert eviction_delay_seconds(tolerating({**exists, "tolerationSeconds": 300}), [taint]) == 300
    both = tolerating({**exists, "tolerationSeconds": 300}, {**exists, "tolerationSeconds": 20})
    assert eviction_delay_seconds(both, [taint]) == 20


@pytest.fixture
def home(tmp_path: Path) -> Iterator[Home]:
    home = Home(tmp_path)
    home.create()
    server = Part(home, "apiserver", "--port", "0")
    server.start()
    yield home
    server.end()


def condition(obj: JSON | None, kind: str) -> JSON:
    conditions = ((obj or {}).get("status") or {}).get("conditions") or ()
    found: JSON = next((c for c in conditions if c["type"] == kind), {})
    return found


async def make_node(seen: Observer, name: str) -> JSON:
    created = await seen.client.create(NODES.path(), new_node(name))
    status = node_status(name, NodeShape("4", "4Gi", 0), "v1", created, utc_now())
    await seen.client.patch(
        NODES.path(name=name, subresource="status"), {"status": status}, kind=STRATEGIC_PATCH
    )
    return created


async def make_pod(seen: Observer, name: str, node_name: str, **spec: Any) -> None:
    await seen.client.create(PODS.path("default"), pod(name, shell("true"), nodeName=node_name, **spec))
    ready = {"type": "Ready", "status": "True"}
    path = PODS.path("default", name, "status")
    status = {"phase": "Running", "conditions": [ready]}
    await seen.client.patch(path, {"status": status}, kind=STRATEGIC_PATCH)


@pytest.mark.real
async def test_a_silent_node_is_marked_and_emptied_and_a_speaking_one_is_not(
    home: Home, monkeypatch: pytest.MonkeyPatch
) -> None:
    now = time.monotonic()

    def pass_time(*_: object) -> None:
        nonlocal now
        now += 0.5

    # Time passes by the Leases that are heard, so that the node that speaks cannot be late.
    monkeypatch.setattr("localcluster.node_lifecycle.time", SimpleNamespace(monotonic=lambda: now))
    async with observing(home) as seen:
        leases = Informer(seen.client, LEASES, LEASE_NAMESPACE)
        leases.add_handler(pass_time)
        recorder = Recorder(seen.client, "node-controller")
        lifecycle = NodeLifecycle(seen.client, recorder, seen.nodes, seen.pods, leases, silence_seconds=4.0)
        await make_node(seen, "dead")
        alive = await make_node(seen, "alive")

        async def beat() -> None:
            while True:
                await renew_lease(seen.client, alive)
                await asyncio.sleep(0.2)

        short = {"key": "node.kubernetes.io/unreachable", "operator": "Exists", "tolerationSeconds": 1}
        await make_pod(seen, "patient", "dead")
        await make_pod(seen, "hasty", "dead", tolerations=[short])
        await make_pod(seen, "safe", "alive")
        await make_pod(seen, "orphan", "no-such-node")
        tasks = [
            asyncio.create_task(each) for each in (leases.run(), recorder.run(), beat(), lifecycle.run())
        ]
        try:
            await seen.until(
                lambda: condition(seen.nodes.get("", "dead"), "Ready").get("status") == "Unknown"
            )
            await seen.until(lambda: condition(seen.pod("patient"), "Ready").get("status") == "False")
            await seen.until_gone("orphan")
            await seen.until(lambda: "deletionTimestamp" in seen.pod("hasty")["metadata"])
            target = condition(seen.pod("hasty"), "DisruptionTarget")
            assert (target["status"], target["reason"]) == ("True", "DeletionByTaintManager")
            assert "deletionTimestamp" not in seen.pod("patient")["metadata"]
            assert condition(seen.pod("safe"), "Ready")["status"] == "True"
            assert condition(seen.nodes.get("", "alive"), "Ready")["status"] == "True"
        finally:
            for task in tasks:
                task.cancel()
