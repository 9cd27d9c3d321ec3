"""Counts and ScalePlans on the real API server, with the real controllers and agents that obey."""

from __future__ import annotations

import asyncio
import contextlib
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest

from agent.facts.world import (
    Member,
    Verb,
    World,
    next_action,
)
from controller.errors import ApiError, Invalid
from controller.resources import EVENTS, PODS
from crds.agent_report import AgentState
from reconcilers.runtime.kinds import ELASTICJOBS, ELASTICWORKERS, SCALEPLANS
from tests.reconcilers.build import in_lists
from tests.reconcilers.cluster import NAMESPACE, Hollow

pytestmark = pytest.mark.real

JSON = dict[str, Any]
RESOURCES = {"requests": {"memory": "1Gi"}, "limits": {"memory": "1Gi"}}
TEMPLATE = {"spec": {"containers": [{"name": "main", "image": "x", "resources": RESOURCES}]}}


class Obedient:
    """Kubelet and agents of one job: its Pods run, and what the world says is done."""

    def __init__(self, hollow: Hollow, job: str) -> None:
        self._hollow = hollow
        self._job = job
        self.worlds: dict[int, list[int]] = {}
        """Members by round."""
        self.phases: list[str] = []
        """The world's phase in each status written since the first `Formed`."""

    async def seen(self) -> list[list[int]]:
        """The members of every world so far, in order, as soon as the newest is among them."""
        newest = (await self._hollow.world(self._job))["round"]

        async def caught_up() -> bool:
            return newest in self.worlds

        await self._hollow.until(f"round {newest} to be seen", caught_up)
        return [self.worlds[number] for number in sorted(self.worlds)]

    async def watch(self, since: str) -> None:
        """Record the world in every status of the job that is written after resourceVersion `since`."""
        only = f"metadata.name={self._job}"
        stream = self._hollow.client.watch(
            ELASTICJOBS, NAMESPACE, resource_version=since, timeout_seconds=600, field_selector=only
        )
        async with stream as events:
            while (lines := await events.lines(600)) is not None:
                for line in lines:
                    self._record(json.loads(line)["object"].get("status", {}).get("rendezvous"))

    def _record(self, wire: JSON | None) -> None:
        if not wire:
            return
        world = in_lists(wire)
        if world.get("phase") == "Formed":
            self.worlds[world["round"]] = world["members"]
        if self.worlds:
            self.phases.append(world["phase"])

    async def run(self) -> None:
        while True:
            with contextlib.suppress(ApiError, KeyError):  # it has changed or gone meanwhile
                await self._look()
            await asyncio.sleep(0.02)

    async def _look(self) -> None:
        status = await self._hollow.status(self._job)
        wire = status.get("rendezvous", {})
        label = f"elastic.iml.github.io/job-name={self._job}"
        for pod in (await self._hollow.client.list(PODS, NAMESPACE, label_selector=label))["items"]:
            if pod["metadata"].get("deletionTimestamp"):
                await self._hollow.delete_pod(pod["metadata"]["name"])
        workers = await self._hollow.client.list(ELASTICWORKERS, NAMESPACE, label_selector=label)
        for worker in workers["items"]:
            await self._speak(worker, wire, status.get("phase", ""))

    async def _speak(self, worker: JSON, rendezvous: JSON, phase: str) -> None:
        name, incarnation = worker["metadata"]["name"], worker["spec"]["incarnation"]
        status = worker.get("status", {})
        report = status.get("agent", {})
        if status.get("observedIncarnation") != incarnation or "podUid" not in status:
            return
        if report.get("podUid") != status["podUid"]:
            await self._hollow.run_agent(name, incarnation)
            return
        me, state = Member(worker["spec"]["index"], incarnation), AgentState(report["state"])
        action = next_action(World.parse(rendezvous), me, report["observedRound"], state, phase)
        if action.verb in (Verb.START, Verb.STAND_BY):
            said = "Running" if action.verb is Verb.START else "Ready"
            await self._hollow.say(name, {"state": said, "observedRound": action.round})


@asynccontextmanager
async def training(hollow: Hollow, name: str, replicas: int, minimum: int) -> AsyncIterator[Obedient]:
    await hollow.submit(name, replicas, worker={"minReplicas": minimum, "template": TEMPLATE})
    submitted = (await hollow.job(name))["metadata"]["resourceVersion"]
    obedient = Obedient(hollow, name)
    tasks = [asyncio.create_task(obedient.run()), asyncio.create_task(obedient.watch(submitted))]
    try:
        await hollow.formed(name, 1)
        yield obedient
    finally:
        for task in tasks:
            task.cancel()


async def ask(hollow: Hollow, name: str, job: str, **spec: Any) -> None:
    plan = {"apiVersion": SCALEPLANS.api_version, "kind": "ScalePlan", "spec": {"ownerJob": job} | spec}
    await hollow.client.create(SCALEPLANS, plan | {"metadata": {"name": name, "namespace": NAMESPACE}})


async def judged(hollow: Hollow, name: str, phase: str = "Applied") -> JSON:
    """The condition with the plan's verdict."""

    async def look() -> JSON | None:
        plan = await hollow.client.get(SCALEPLANS, name, NAMESPACE)
        status = plan.get("status", {})
        return status if status.get("phase") == phase else None

    status = await hollow.until(f"ScalePlan {name} {phase}", look)
    return next(c for c in status["conditions"] if c["type"] == "Applied")


async def scaled(hollow: Hollow, name: str, job: str) -> None:
    """Wait until the plan is applied, and its job has what it asked."""
    await judged(hollow, name)

    async def look() -> bool:
        conditions = (await hollow.status(job)).get("conditions", ())
        return any((c["type"], c["status"]) == ("Scaled", "True") for c in conditions)

    await hollow.until(f"what ScalePlan {name} asked", look)


async def slots(hollow: Hollow, job: str) -> list[int]:
    listed = await hollow.client.list(
        ELASTICWORKERS, NAMESPACE, label_selector=f"elastic.iml.github.io/job-name={job}"
    )
    return sorted(worker["spec"]["index"] for worker in listed["items"])


async def told(hollow: Hollow, name: str, reason: str, message: str) -> None:
    async def look() -> bool:
        found = (await hollow.client.list(EVENTS, NAMESPACE))["items"]
        return any(
            (e["involvedObject"]["name"], e["reason"], e["message"]) == (name, reason, message) for e in found
        )

    await hollow.until(f"the Event {reason}: {message}", look)


async def test_middle_worker_is_removed_in_one_round_and_the_ranks_of_the_others_stay_in_order(
    hollow: Hollow,
) -> None:
    async with training(hollow, "remove", 4, 2) as agents:
        await ask(hollow, "without-1", "remove", removePods=[{"name": "remove-worker-1"}])
        await scaled(hollow, "without-1", "remove")
        assert await agents.seen() == [[0, 1, 2, 3], [0, 2, 3]]

        async def gone() -> bool:
            return await slots(hollow, "remove") == [0, 2, 3]

        await hollow.until("worker 1 to go", gone)
        status = await hollow.status("remove")
        assert status["scaling"]["by"] == "ScalePlan without-1" and status["retired"] == {"worker": "1"}
        await told(hollow, "remove", "ScaleRequested", "from 4 to 3 workers, by ScalePlan without-1")
        taken = "ScalePlan without-1: 3 of type worker; without worker 1"
        await told(hollow, "remove", "ScalePlanTaken", taken)


async def test_worker_is_moved_without_a_break(hollow: Hollow) -> None:
    async with training(hollow, "move", 2, 2) as agents:
        await ask(hollow, "off-its-node", "move", migratePods=[{"name": "move-worker-0-1"}])
        await scaled(hollow, "off-its-node", "move")
        assert await agents.seen() == [[0, 1], [1, 2]] and set(agents.phases) == {"Formed"}
        await told(hollow, "move", "WorkerMoved", "worker 2 has taken the place of 0")


async def test_memory_is_doubled_on_three_workers_one_at_a_time_never_below_two(hollow: Hollow) -> None:
    async with training(hollow, "memory", 3, 2) as agents:
        await ask(hollow, "more", "memory", replicaResourceSpecs={"worker": {"resource": {"memory": "2Gi"}}})
        await scaled(hollow, "more", "memory")
        assert await agents.seen() == [
            [0, 1, 2],
            [1, 2],
            [0, 1, 2],
            [0, 2],
            [0, 1, 2],
            [0, 1],
            [0, 1, 2],
        ]
        assert set(agents.phases) == {"Formed"}
        for index in range(3):
            pod = await hollow.client.get(PODS, f"memory-worker-{index}-2", NAMESPACE)
            assert pod["spec"]["containers"][0]["resources"]["limits"] == {"memory": "2Gi"}


async def test_newer_plan_wins_and_an_edit_wins_over_both(hollow: Hollow) -> None:
    async with training(hollow, "newer", 2, 1):
        await ask(hollow, "first", "newer", migratePods=[{"id": 0}, {"id": 1}])
        await judged(hollow, "first")
        await ask(hollow, "second", "newer", replicaResourceSpecs={"worker": {"replicas": 3}})
        await scaled(hollow, "second", "newer")
        patch = {"spec": {"replicaSpecs": {"worker": {"replicas": 1}}}}
        await hollow.client.patch(ELASTICJOBS, "newer", patch, NAMESPACE)

        async def alone() -> bool:
            return len((await hollow.world("newer"))["members"]) == 1

        await hollow.until("a world of one", alone)
        assert (await hollow.status("newer"))["scaling"]["by"] == "spec"


async def test_bad_plans_are_refused_with_the_field_and_leave_the_job_alone(hollow: Hollow) -> None:
    async with training(hollow, "steady", 2, 2) as agents:
        generation = (await hollow.job("steady"))["metadata"]["generation"]
        await ask(hollow, "too-few", "steady", replicaResourceSpecs={"worker": {"replicas": 1}})
        await ask(hollow, "nobody", "steady", removePods=[{"name": "steady-worker-9"}])
        await ask(hollow, "no-job", "unsteady", replicaResourceSpecs={"worker": {"replicas": 1}})
        refused = {name: await judged(hollow, name, "Refused") for name in ("too-few", "nobody", "no-job")}
        assert {name: c["reason"] for name, c in refused.items()} == {
            "too-few": "BelowMinimum",
            "nobody": "WorkerNotFound",
            "no-job": "JobNotFound",
        }
        assert refused["too-few"]["message"].startswith("spec.replicaResourceSpecs[worker].replicas: 1 Pod ")
        await told(hollow, "too-few", "BelowMinimum", refused["too-few"]["message"])
        assert await agents.seen() == [[0, 1]]
        assert (await hollow.job("steady"))["metadata"]["generation"] == generation


async def test_autoscalers_call_scales_the_job_and_one_below_the_minimum_is_refused(hollow: Hollow) -> None:
    async with training(hollow, "auto", 1, 1):
        await hollow.client.patch(
            ELASTICJOBS, "auto", {"spec": {"replicas": 2}}, NAMESPACE, subresource="scale"
        )

        async def two() -> bool:
            return (await hollow.world("auto"))["members"] == [0, 1]

        await hollow.until("a world of two", two)
        with pytest.raises(Invalid, match="replicas must not be less than minReplicas"):
            await hollow.client.patch(
                ELASTICJOBS, "auto", {"spec": {"replicas": 0}}, NAMESPACE, subresource="scale"
            )
