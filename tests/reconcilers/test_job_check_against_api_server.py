"""Jobs and their checks on the real API server. The tests play scheduler, agents and NodeCheck reconciler."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import suppress
from datetime import UTC, datetime
from typing import Any

import pytest

from controller.errors import NotFound
from controller.manager import Manager
from controller.resources import (
    EVENTS,
    NODES,
    PODS,
    Resource,
)
from reconcilers.observed.options import PodOptions
from reconcilers.runtime.clock import Clock
from reconcilers.runtime.kinds import ELASTICJOBS, ELASTICWORKERS, NODECHECKS
from reconcilers.setup import add_indexes, add_jobs, add_workers
from tests.reconcilers.cluster import NAMESPACE, ApiServer, Hollow, connected, controllers

pytestmark = pytest.mark.real

JSON = dict[str, Any]
CHECKED = {"enabled": True, "timeoutSeconds": 77, "cordon": False}


class Ward(Hollow):
    """Plays those around a job that is checked."""

    async def up(self, job: str, index: int, node: str, incarnation: int = 1, **report: Any) -> None:
        """The worker's Pod gets a node and runs, and its agent waits for a world."""
        worker = f"{job}-worker-{index}"
        pod = f"{worker}-{incarnation}"
        await self.until(f"Pod {pod}", lambda: self.client.get(PODS, pod, NAMESPACE))
        binding = {
            "metadata": {"name": pod, "namespace": NAMESPACE},
            "target": {"kind": "Node", "name": node},
        }
        await self.client.create(Resource("", "v1", f"pods/{pod}/binding", "Binding"), binding)

        async def placed() -> bool:
            found = await self.worker(worker)
            return (
                found.get("status", {}).get("nodeName") == node
                and found["status"]["observedIncarnation"] == incarnation
            )

        await self.run_agent(worker, incarnation, **report)
        await self.until(f"{worker} on {node}", placed)

    async def worker(self, name: str) -> JSON:
        return await self.client.get(ELASTICWORKERS, name, NAMESPACE)

    async def active(self, job: str, check: str) -> JSON:
        """The check, once the job has given its workers to it."""

        async def given() -> JSON | None:
            if (await self.status(job)).get("activeCheck") != check:
                return None
            return await self.client.get(NODECHECKS, check, NAMESPACE)

        return await self.until(f"{job} to be checked by {check}", given)

    async def conclude(self, check: str, job: str, phase: str = "Succeeded", **verdicts: str) -> None:
        """As its reconciler would write it: a verdict on each worker's node, Healthy where none is given."""
        found = await self.client.get(NODECHECKS, check, NAMESPACE)
        listed = await self.client.list(ELASTICWORKERS, NAMESPACE)
        wanted = found["spec"].get("workers")
        taking_part = [
            w
            for w in listed["items"]
            if w["spec"].get("jobName") == job and (wanted is None or w["spec"]["index"] in wanted)
        ]
        nodes = [w["status"]["nodeName"] for w in taking_part]
        results = [
            {"node": node, "verdict": verdicts.get(node.replace("-", "_"), "Healthy")} for node in nodes
        ]
        status = {
            "phase": phase,
            "nodes": nodes,
            "workers": [w["spec"]["index"] for w in taking_part],
            "incarnations": [w["spec"]["incarnation"] for w in taking_part],
            "nodeResults": results if phase == "Succeeded" else [],
            "faultyNodes": [r["node"] for r in results if r["verdict"] == "Faulty"],
            "stragglers": [r["node"] for r in results if r["verdict"] == "Straggler"],
            "completionTime": datetime.now(UTC).isoformat(),
        }
        await self.client.patch(NODECHECKS, check, {"status": status}, NAMESPACE, subresource="status")

    async def answer_checks(self, job: str, broken: str) -> None:
        """Every agent carries out what the job's check asks of it; pairs with the broken node fail."""
        while True:
            await asyncio.sleep(0.05)
            with suppress(NotFound, KeyError):  # it has gone meanwhile, or nobody has spoken yet
                active = (await self.status(job)).get("activeCheck")
                if active is not None:
                    await self._answer(job, await self.client.get(NODECHECKS, active, NAMESPACE), broken)

    async def _answer(self, job: str, check: JSON, broken: str) -> None:
        status = check.get("status", {})
        for index, node in zip(status.get("workers", ()), status.get("nodes", ()), strict=True):
            worker = await self.worker(f"{job}-worker-{index}")
            said = worker["status"]["agent"].get("check", {})
            if said.get("uid") != check["metadata"]["uid"]:
                said = {"uid": check["metadata"]["uid"], "local": [], "pairs": []}
            if not said["local"] and node not in status.get("reused", ()):
                said["local"] = [{"probe": "gemm", "ending": "Passed"}]
            for group in status.get("groups", ()):
                told = [pair["round"] for pair in said["pairs"]]
                if node in group["members"] and status["round"] not in told:
                    ending = "Failed" if broken in group["members"] else "Passed"
                    pair = {"probe": "pair", "ending": ending, "round": status["round"]}
                    said["pairs"] = [*said["pairs"], pair]
            await self.say(f"{job}-worker-{index}", {"check": said})

    async def condition(self, job: str, reason: str) -> JSON:
        async def told() -> JSON | None:
            conditions = (await self.status(job)).get("conditions", ())
            return next((c for c in conditions if (c["type"], c["reason"]) == ("NodesChecked", reason)), None)

        return await self.until(f"NodesChecked of {job}: {reason}", told)

    async def event(self, job: str, reason: str, text: str = "") -> None:
        async def seen() -> bool:
            events = (await self.client.list(EVENTS, NAMESPACE))["items"]
            return any(
                e["involvedObject"]["name"] == job and e["reason"] == reason and text in e["message"]
                for e in events
            )

        await self.until(f"Event {reason} on {job}", seen)

    async def no_world(self, job: str, round_: int = 0) -> None:
        world = await self.world(job)
        assert world.get("phase") != "Formed" and world.get("round", 0) == round_

    async def train_checked(self, job: str, nodes: list[str], **spec: Any) -> None:
        """Submit, pass the first check, and let everyone reach Running in round 1."""
        await self.submit(job, replicas=len(nodes), nodeCheck=CHECKED, **spec)
        for index, node in enumerate(nodes):
            await self.up(job, index, node)
        await self.active(job, f"{job}-check-1")
        await self.conclude(f"{job}-check-1", job)
        await self.formed(job, 1)
        for index in range(len(nodes)):
            await self.say(f"{job}-worker-{index}", {"state": "Running", "observedRound": 1})


def jobs_and_pods(manager: Manager) -> None:
    add_indexes(manager.cache)
    add_jobs(manager, Clock())
    add_workers(manager, Clock(), PodOptions())


@pytest.fixture
async def ward(server: ApiServer) -> AsyncIterator[Ward]:
    async with connected(server) as hollow, controllers(server, register=jobs_and_pods):
        yield Ward(hollow.client)


async def test_a_job_is_checked_before_its_first_world(ward: Ward) -> None:
    await ward.submit("first", nodeCheck=CHECKED)
    assert (await ward.condition("first", "NotYetChecked"))["status"] == "Unknown"
    for index in (0, 1):
        await ward.up("first", index, f"first-{index}")
    check = await ward.active("first", "first-check-1")
    assert check["spec"]["workers"] == [0, 1] and check["spec"]["timeoutSeconds"] == 77
    assert check["spec"]["cordon"] is False
    assert check["metadata"]["ownerReferences"][0]["kind"] == "ElasticJob"
    await ward.no_world("first")
    await ward.event("first", "Checking", "first-check-1 tests workers 0, 1")
    await ward.conclude("first-check-1", "first")
    world = await ward.formed("first", 1)
    assert world["members"] == [0, 1]
    assert "activeCheck" not in await ward.status("first")
    assert (await ward.condition("first", "AllHealthy"))["status"] == "True"
    await ward.event("first", "AllHealthy", "first-check-1")


async def test_a_faulty_nodes_worker_gets_another_node_which_is_checked_too(ward: Ward) -> None:
    await ward.submit("sick", nodeCheck=CHECKED)
    for index in (0, 1):
        await ward.up("sick", index, f"sick-{index}")
    await ward.active("sick", "sick-check-1")
    await ward.conclude("sick-check-1", "sick", sick_1="Faulty")
    await ward.event("sick", "WorkerRelaunched", "node check sick-check-1 found sick-1 faulty")
    assert (await ward.condition("sick", "FaultyNodes"))["status"] == "False"
    relaunched = await ward.worker("sick-worker-1")
    assert relaunched["spec"]["incarnation"] == 2 and relaunched["spec"]["faultyNodes"] == ["sick-1"]
    await ward.no_world("sick")
    await ward.up("sick", 1, "sick-2", incarnation=2)
    check = await ward.active("sick", "sick-check-2")
    assert check["spec"]["workers"] == [0, 1]
    await ward.conclude("sick-check-2", "sick")
    world = await ward.formed("sick", 1)
    assert (world["members"], world["incarnations"]) == ([0, 1], [1, 2])
    assert not (await ward.status("sick")).get("restarts"), "no budget is spent"


async def test_a_check_made_by_hand_stops_training_and_training_goes_on_after_it(ward: Ward) -> None:
    await ward.train("byhand")
    await ward.client.create(
        NODECHECKS,
        {
            "apiVersion": NODECHECKS.api_version,
            "kind": NODECHECKS.kind,
            "metadata": {"name": "look", "namespace": NAMESPACE},
            "spec": {"jobName": "byhand"},
        },
    )
    await ward.active("byhand", "look")
    world = await ward.world("byhand")
    assert world["phase"] == "Reforming" and "node check look tests workers 0, 1" in world["reason"]
    await ward.client.delete(NODECHECKS, "look", NAMESPACE)
    for index in (0, 1):
        await ward.say(f"byhand-worker-{index}", {"state": "Ready", "observedRound": 1})
    await ward.formed("byhand", 2)
    assert (await ward.condition("byhand", "CheckGone"))["status"] == "Unknown"


async def test_a_failure_that_smells_of_hardware_is_checked_and_an_ordinary_one_is_not(ward: Ward) -> None:
    await ward.train_checked("smell", ["smell-0", "smell-1"])
    failure = {
        "sequence": 1,
        "round": 1,
        "exitCode": 1,
        "message": "ValueError",
        "time": "2026-01-01T00:00:00Z",
    }
    await ward.say("smell-worker-0", {"state": "Failed", "failure": failure})
    await ward.formed("smell", 2)
    status = await ward.status("smell")
    assert "suspectedAt" not in status and status["restarts"] == {"UserError": 1}
    for index in (0, 1):
        await ward.say(f"smell-worker-{index}", {"state": "Running", "observedRound": 2})
    failure |= {"sequence": 2, "round": 2, "message": "CUDA error: uncorrectable ECC error encountered"}
    await ward.say("smell-worker-0", {"state": "Failed", "failure": failure})
    check = await ward.active("smell", "smell-check-2")
    status = await ward.status("smell")
    assert status["rendezvous"]["phase"] == "Reforming" and status["restarts"] == {
        "UserError": 1,
        "HardwareError": 1,
    }
    assert status["suspectedAt"] <= check["metadata"]["creationTimestamp"].replace("Z", ".999999Z")
    await ward.conclude("smell-check-2", "smell", smell_0="Inconclusive")
    await ward.formed("smell", 3)
    assert (await ward.status("smell"))["restarts"] == {"UserError": 1, "HardwareError": 1}


async def test_newcomers_are_checked_while_the_world_trains(ward: Ward) -> None:
    await ward.train_checked("grow", ["grow-0", "grow-1"])
    patch = {"spec": {"replicaSpecs": {"worker": {"replicas": 3}}}}
    await ward.client.patch(ELASTICJOBS, "grow", patch, NAMESPACE)
    await ward.up("grow", 2, "grow-2")
    check = await ward.active("grow", "grow-check-2")
    assert check["spec"]["workers"] == [2]
    assert (await ward.world("grow"))["phase"] == "Formed"
    await ward.conclude("grow-check-2", "grow")
    assert (await ward.formed("grow", 2))["members"] == [0, 1, 2]


async def test_a_check_that_fails_lets_the_job_train_unchecked_and_says_so(ward: Ward) -> None:
    await ward.submit("moot", nodeCheck=CHECKED)
    for index in (0, 1):
        await ward.up("moot", index, f"moot-{index}")
    await ward.active("moot", "moot-check-1")
    await ward.conclude("moot-check-1", "moot", phase="Failed")
    await ward.formed("moot", 1)
    assert (await ward.condition("moot", "CheckFailed"))["status"] == "Unknown"


async def test_a_straggler_is_left_out_and_said_so(ward: Ward) -> None:
    policy = CHECKED | {"excludeStragglers": True}
    await ward.submit("slow", replicas=3, nodeCheck=policy, worker={"minReplicas": 2})
    for index in range(3):
        await ward.up("slow", index, f"slow-{index}")
    await ward.active("slow", "slow-check-1")
    await ward.conclude("slow-check-1", "slow", slow_0="Straggler")
    assert (await ward.formed("slow", 1))["members"] == [1, 2]
    assert "worker 0 is left out" in (await ward.condition("slow", "Stragglers"))["message"]


async def test_finished_checks_of_the_jobs_own_do_not_pile_up(ward: Ward) -> None:
    await ward.train_checked("many", ["many-0"])
    job = await ward.job("many")
    own = (await ward.client.get(NODECHECKS, "many-check-1", NAMESPACE))["metadata"]["ownerReferences"]
    for number in range(2, 9):
        name = f"many-check-{number}" if number < 8 else "mine"
        metadata = {"name": name, "namespace": NAMESPACE} | ({"ownerReferences": own} if number < 8 else {})
        made = {"apiVersion": NODECHECKS.api_version, "kind": NODECHECKS.kind, "metadata": metadata}
        await ward.client.create(
            NODECHECKS, made | {"spec": {"jobName": job["metadata"]["name"], "workers": [9]}}
        )
        await ward.conclude(name, "many", phase="Failed")

    async def left() -> bool:
        listed = (await ward.client.list(NODECHECKS, NAMESPACE))["items"]
        names = {c["metadata"]["name"] for c in listed if c["spec"].get("jobName") == "many"}
        return len(names) == 6 and "mine" in names

    await ward.until("five checks of its own and the user's", left)


async def test_a_suspended_job_is_not_checked(ward: Ward) -> None:
    await ward.submit("rest", nodeCheck=CHECKED)
    for index in (0, 1):
        await ward.up("rest", index, f"rest-{index}")
    await ward.active("rest", "rest-check-1")
    await ward.client.patch(ELASTICJOBS, "rest", {"spec": {"suspend": True}}, NAMESPACE)
    status = await ward.phase("rest", "Suspended")
    assert "activeCheck" not in status
    await ward.condition("rest", "CheckInterrupted")


async def test_job_and_check_go_hand_in_hand_from_a_broken_node_to_training(server: ApiServer) -> None:
    """All reconcilers; the agents answer as their nodes are."""
    async with connected(server) as hollow, controllers(server):
        ward = Ward(hollow.client)
        for index in range(5):
            node = {"apiVersion": "v1", "kind": "Node", "metadata": {"name": f"whole-{index}"}}
            await ward.client.create(NODES, node)
        await ward.submit("whole", replicas=4, nodeCheck={"enabled": True, "cordon": False})
        for index in range(4):
            await ward.up("whole", index, f"whole-{index}")
        answering = asyncio.create_task(ward.answer_checks("whole", broken="whole-3"))
        try:
            await ward.up("whole", 3, "whole-4", incarnation=2)
            world = await ward.formed("whole", 1)
        finally:
            answering.cancel()
        assert (world["members"], world["incarnations"]) == ([0, 1, 2, 3], [1, 1, 1, 2])
        first = await ward.client.get(NODECHECKS, "whole-check-1", NAMESPACE)
        assert first["status"]["faultyNodes"] == ["whole-3"]
        second = await ward.client.get(NODECHECKS, "whole-check-2", NAMESPACE)
        assert "whole-4" not in second["status"]["reused"] and len(second["status"]["reused"]) >= 2
        assert "whole-3" in (await ward.worker("whole-worker-3"))["spec"]["faultyNodes"]


async def test_deleting_a_job_removes_its_checks(ward: Ward) -> None:
    await ward.train_checked("gone", ["gone-0"])
    await ward.client.delete(ELASTICJOBS, "gone", NAMESPACE)

    async def collected() -> bool:
        try:
            await ward.client.get(NODECHECKS, "gone-check-1", NAMESPACE)
        except NotFound:
            return True
        return False

    await ward.until("the check to be collected", collected)
