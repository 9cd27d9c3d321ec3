"""A gang on the embedded cluster: real API server, scheduler and Pods."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from controller.errors import Refused
from controller.resources import NODES, PODS
from localcluster.client.api import POD_GROUPS
from localcluster.paths import Home
from localcluster.scheduler.gangs import POD_GROUP_LABEL
from tests.localcluster.running import Observer, observing, pod, running_cluster, shell

pytestmark = pytest.mark.real

JSON = dict[str, Any]

WORKERS = [f"w-{index}" for index in range(4)]


@pytest.fixture
def home(tmp_path: Path) -> Iterator[Home]:
    with running_cluster(tmp_path, "--nodes", "4", "--cpus-per-node", "2") as (running, _):
        yield running


async def create_group(seen: Observer, minimum: int) -> None:
    group = {
        "apiVersion": "scheduling.x-k8s.io/v1alpha1",
        "kind": "PodGroup",
        "metadata": {"name": "train"},
        "spec": {"minMember": minimum},
    }
    await seen.client.create(POD_GROUPS.path("default"), group)


async def create_worker(seen: Observer, name: str) -> None:
    container = shell("sleep 1000", resources={"requests": {"cpu": "2"}})
    made = pod(name, container, schedulerName="scheduler-plugins-scheduler")
    made["metadata"]["labels"] = {POD_GROUP_LABEL: "train"}
    await seen.client.create(PODS.path("default"), made)


def unschedulable(seen: Observer, name: str) -> str:
    conditions = seen.pod(name).get("status", {}).get("conditions") or ()
    return next((c["message"] for c in conditions if c.get("reason") == "Unschedulable"), "")


async def until_phase_of_group(seen: Observer, phase: str) -> JSON:
    """The status comes after the Pods', which the observer watches."""
    status: JSON = {}
    for _attempt in range(6000):
        status = (await seen.client.get(POD_GROUPS.path("default", "train"))).get("status") or {}
        if status.get("phase") == phase:
            return status
        await asyncio.sleep(0.05)
    raise AssertionError(status)


async def test_no_worker_of_four_runs_with_room_for_three_and_all_do_with_room_for_four(home: Home) -> None:
    async with observing(home) as seen:
        await seen.client.patch(NODES.path(name="node-3"), {"spec": {"unschedulable": True}})
        await seen.until(lambda: (seen.nodes.get("", "node-3") or {})["spec"].get("unschedulable"))
        await create_group(seen, 4)
        for name in WORKERS:
            await create_worker(seen, name)
        why = "needs 4 Pods with a node at once, 0 have one and 3 could get one"
        await seen.until(lambda: all(why in unschedulable(seen, name) for name in WORKERS))
        assert (await until_phase_of_group(seen, "Scheduling"))["running"] == 0

        await seen.create("single", shell("exit 0", resources={"requests": {"cpu": "2"}}))
        await seen.until_phase("single", "Succeeded")
        assert not any(seen.pod(name)["spec"].get("nodeName") for name in WORKERS)

        await seen.client.patch(NODES.path(name="node-3"), {"spec": {"unschedulable": None}})
        for name in WORKERS:
            await seen.until_phase(name, "Running")
        assert len({seen.pod(name)["spec"]["nodeName"] for name in WORKERS}) == 4
        assert await until_phase_of_group(seen, "Running") == {
            "phase": "Running",
            "running": 4,
            "succeeded": 0,
            "failed": 0,
        }

        await seen.delete("w-1", grace_period_seconds=0)
        await create_worker(seen, "w-4")
        await seen.until_phase("w-4", "Running")


async def test_a_group_of_none_is_refused_and_pods_that_name_nobody_s_scheduler_stay(home: Home) -> None:
    async with observing(home) as seen:
        with pytest.raises(Refused, match=r"spec\.minMember"):
            await create_group(seen, 0)
        await seen.create("lost", shell("exit 0"), schedulerName="somebody-elses")
        await seen.create("ours", shell("exit 0"))
        await seen.until_phase("ours", "Succeeded")
        assert seen.phase("lost") == "Pending"
        assert not seen.pod("lost")["spec"].get("nodeName")
