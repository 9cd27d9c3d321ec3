"""The NodeCheck reconciler on the real API server, with hollow workers and agents that report over HTTP."""

from __future__ import annotations

import zlib
from collections.abc import AsyncIterator, Hashable
from contextlib import AbstractAsyncContextManager, suppress
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from controller import clock
from controller.errors import Invalid, NotFound
from controller.manager import Manager
from controller.resources import EVENTS, NODES, Resource
from reconcilers.nodecheck.reconciler import AGENTS
from reconcilers.observed.observations import Observations
from reconcilers.runtime.clock import Clock
from reconcilers.runtime.kinds import ELASTICJOBS, ELASTICWORKERS, NODECHECKS
from reconcilers.setup import add_indexes, add_node_checks
from tests.reconcilers.check_stage import BAD, GOOD, Agents
from tests.reconcilers.cluster import NAMESPACE, PATIENCE_SECONDS, ApiServer, Hollow, connected, controllers

pytestmark = pytest.mark.real

JSON = dict[str, Any]


def controller(server: ApiServer, clock: Clock | None = None) -> AbstractAsyncContextManager[Manager]:
    """The manager with the NodeCheck reconciler alone: the tests play the others."""

    def register(manager: Manager) -> None:
        add_indexes(manager.cache)
        add_node_checks(manager, clock or Clock())

    return controllers(server, register=register)


class Nodes(Hollow):
    """Plays nodes, workers and agents."""

    async def add_nodes(self, *nodes: str) -> None:
        for name in nodes:
            node = {"apiVersion": "v1", "kind": "Node", "metadata": {"name": name}}
            await self.client.create(NODES, node)

    async def add_check(self, name: str, **spec: Any) -> None:
        meta = {"name": name, "namespace": NAMESPACE}
        check = {
            "apiVersion": NODECHECKS.api_version,
            "kind": NODECHECKS.kind,
            "metadata": meta,
            "spec": spec,
        }
        await self.client.create(NODECHECKS, check)

    async def check(self, name: str) -> JSON:
        return await self.client.get(NODECHECKS, name, NAMESPACE)

    async def until_check(self, name: str, **wanted: Any) -> JSON:
        """Its status, once it has these fields."""

        async def reached() -> JSON | None:
            status = (await self.check(name)).get("status", {})
            return status if wanted.items() <= status.items() else None

        found: JSON = await self.until(f"{name} {wanted}", reached)
        return found

    async def until_condition(self, name: str, type_: str, reason: str) -> JSON:
        async def reached() -> JSON | None:
            conditions = (await self.check(name)).get("status", {}).get("conditions", ())
            return next((c for c in conditions if (c["type"], c["reason"]) == (type_, reason)), None)

        found: JSON = await self.until(f"{name}: {reason}", reached)
        return found

    async def start(self, worker: str, node: str, **report: Any) -> None:
        """Its Pod runs on the node, and the agent in it is ready."""
        agent = {
            "incarnation": 1,
            "podUid": worker,
            "address": "127.0.0.9",
            "storePort": 29_400,
            "localWorldSize": 1,
            "state": "Ready",
            "since": "2026-01-01T00:00:00Z",
        }
        status = {"observedIncarnation": 1, "phase": "Running", "podUid": worker, "nodeName": node}
        patch = {"status": status | {"agent": agent | report}}
        await self.client.patch(ELASTICWORKERS, worker, patch, NAMESPACE, subresource="status")

    async def workers_of(self, check: str) -> dict[str, str]:
        """The node of each ElasticWorker that was made for the check."""
        label = f"elastic.iml.github.io/check-name={check}"
        listed = await self.client.list(ELASTICWORKERS, NAMESPACE, label_selector=label)
        return {w["metadata"]["name"]: w["spec"]["nodeName"] for w in listed["items"]}

    async def start_all(self, check: str, count: int) -> dict[str, str]:
        async def made() -> dict[str, str] | None:
            workers = await self.workers_of(check)
            return workers if len(workers) == count else None

        workers: dict[str, str] = await self.until("the workers", made)
        for worker, node in workers.items():
            await self.start(worker, node)
        return workers

    async def answer(self, name: str, agents: Agents, *, job: str = "") -> None:
        """All agents do what the current step asks of them."""
        check = await self.check(name)
        status, uid = check["status"], check["metadata"]["uid"]
        for node, index in zip(status["nodes"], status["workers"], strict=True):
            worker = f"{job}-worker-{index}" if job else f"{name}-check-{index}"
            report = (await self.client.get(ELASTICWORKERS, worker, NAMESPACE))["status"]["agent"]
            said = report.get("check") or {}
            if said.get("uid") != uid:
                said = {"uid": uid, "local": [], "pairs": []}
            if not status["round"]:
                said["local"] = agents.local(node) or []
            group = next((g["members"] for g in status.get("groups", ()) if node in g["members"]), None)
            if group is not None:
                said["pairs"] = [*said["pairs"], agents.pair(node, status["round"], group)]
            await self.say(worker, {"check": said})

    async def carry_out(self, name: str, agents: Agents, *, job: str = "") -> JSON:
        """Answer step after step; the status at the end."""

        async def next_step(last: int | None) -> JSON | None:
            status = (await self.check(name)).get("status", {})
            moved = status.get("phase") == "Succeeded" or status.get("round", last) != last
            return status if moved else None

        last = None
        while True:
            status: JSON = await self.until("a step", lambda last=last: next_step(last))
            if status["phase"] == "Succeeded":
                return status
            last = status["round"]
            await self.answer(name, agents, job=job)


class Ahead:
    """A clock of durations that a test puts forward, in place of waiting."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self._seconds = 0.0
        self._waits = set[tuple[str, Hashable]]()
        self.clock = Clock(monotonic=lambda: clock.monotonic() + self._seconds)
        age_seconds = Observations.age_seconds

        def noted(seen: Observations, uid: str, value: Hashable, now: float | None = None) -> float:
            self._waits.add((uid, value))
            return age_seconds(seen, uid, value, now)

        monkeypatch.setattr(Observations, "age_seconds", noted)

    async def pass_time(self, nodes: Nodes, check: str, step: str) -> None:
        """What the check waits for in this step is late from now on; and the check is looked at."""
        uid = (await nodes.check(check))["metadata"]["uid"]

        async def waits() -> bool:
            return (uid, step) in self._waits

        await nodes.until(f"{check} to wait in step {step}", waits)
        self._seconds += 3_600.0
        patch = {"metadata": {"annotations": {"late": "yes"}}}
        await nodes.client.patch(NODECHECKS, check, patch, NAMESPACE)


@pytest.fixture
async def nodes(server: ApiServer) -> AsyncIterator[Nodes]:
    async with connected(server) as hollow:
        yield Nodes(hollow.client)


def broken(*bad: str) -> Agents:
    return Agents(passes=lambda round_, members: not {*bad} & {*members})


async def test_six_nodes_of_which_the_sixth_is_broken(server: ApiServer, nodes: Nodes) -> None:
    names = [f"six-{i}" for i in range(1, 7)]
    await nodes.add_nodes(*names)
    async with controller(server):
        await nodes.add_check("six", nodes=names)
        workers = await nodes.start_all("six", 6)
        assert workers == {f"six-check-{i}": name for i, name in enumerate(names)}
        status = await nodes.carry_out("six", broken("six-6"))
        assert status["faultyNodes"] == ["six-6"] and status["stragglers"] == []
        met = [[[names[at] for at in test] for test in done["tests"]] for done in status["rounds"]]
        for pairs in met[:2]:
            assert sorted(name for pair in pairs for name in pair) == names, "all are tested"
        assert not {*map(tuple, met[0])} & {*map(tuple, met[1])}, "with other partners"
        told = await nodes.until_condition("six", "Healthy", "FaultyNodes")
        assert told["message"] == "of 6 nodes, 1 faulty (six-6)"

        async def announced() -> bool:
            events = (await nodes.client.list(EVENTS, NAMESPACE))["items"]
            seen = {e["reason"] for e in events if e["involvedObject"]["name"] == "six"}
            return {"CheckStarted", "RoundStarted", "RoundFinished", "CheckFinished"} <= seen

        await nodes.until("the Events", announced)


async def test_workers_of_a_check_go_with_it(server: ApiServer, nodes: Nodes) -> None:
    await nodes.add_nodes("gone-1", "gone-2")
    async with controller(server):
        await nodes.add_check("gone", nodes=["gone-1", "gone-2"])
        await nodes.start_all("gone", 2)
        await nodes.client.delete(NODECHECKS, "gone", NAMESPACE)

        async def collected() -> bool:
            return not await nodes.workers_of("gone")

        await nodes.until("its workers to be collected", collected)


async def test_check_goes_on_under_another_controller_after_every_step(
    server: ApiServer, nodes: Nodes
) -> None:
    names = [f"on-{i}" for i in range(1, 6)]
    agents = Agents(
        local=lambda node: BAD if node == "on-1" else GOOD,
        passes=lambda round_, members: "on-4" not in members,
    )
    await nodes.add_nodes(*names)
    async with controller(server):
        await nodes.add_check("on", nodes=names)
        await nodes.start_all("on", 5)
        await nodes.until_check("on", round=0)
    await nodes.answer("on", agents)
    round_ = 0
    while True:
        async with controller(server):

            async def moved(after: int = round_) -> JSON | None:
                status = (await nodes.check("on"))["status"]
                return status if status["round"] > after or status["phase"] == "Succeeded" else None

            status = await nodes.until("the next step", moved)
        if status["phase"] == "Succeeded":
            break
        round_ = status["round"]
        await nodes.answer("on", agents)
    assert status["faultyNodes"] == ["on-1", "on-4"]
    assert [done["number"] for done in status["rounds"]] == list(range(1, round_ + 1))


async def test_check_of_a_job_waits_for_its_turn_and_for_idle_workers(
    server: ApiServer, nodes: Nodes
) -> None:
    async with controller(server):
        await nodes.submit("job", replicas=2)
        owner = await nodes.job("job")
        reference = {
            "apiVersion": ELASTICJOBS.api_version,
            "kind": "ElasticJob",
            "name": "job",
            "uid": owner["metadata"]["uid"],
            "controller": True,
        }
        for index in (0, 1):
            worker = {"apiVersion": ELASTICWORKERS.api_version, "kind": ELASTICWORKERS.kind}
            metadata = {"name": f"job-worker-{index}", "namespace": NAMESPACE, "ownerReferences": [reference]}
            spec = {"jobName": "job", "type": "worker", "index": index}
            await nodes.client.create(ELASTICWORKERS, worker | {"metadata": metadata, "spec": spec})
            await nodes.start(f"job-worker-{index}", f"node-{index}", state="Running" if index else "Ready")
        await nodes.add_check("turn", jobName="job")
        await nodes.until_condition("turn", "Running", "WaitingForJob")
        patch = {"status": {"activeCheck": "turn"}}
        await nodes.client.patch(ELASTICJOBS, "job", patch, NAMESPACE, subresource="status")
        await nodes.until_condition("turn", "Running", "WaitingForWorkers")
        await nodes.say("job-worker-1", {"state": "Ready"})
        status = await nodes.carry_out("turn", Agents(), job="job")
        assert {r["node"]: r["verdict"] for r in status["nodeResults"]} == {
            "node-0": "Healthy",
            "node-1": "Healthy",
        }


async def test_check_that_waits_for_another_begins_when_that_is_deleted(
    server: ApiServer, nodes: Nodes
) -> None:
    await nodes.add_nodes("both")
    async with controller(server):
        await nodes.add_check("first", nodes=["both"])
        await nodes.until_check("first", nodes=["both"])
        await nodes.add_check("second", nodes=["both"])
        await nodes.until_condition("second", "Running", "WaitingForCheck")
        await nodes.client.delete(NODECHECKS, "first", NAMESPACE)
        await nodes.until_check("second", nodes=["both"])


async def test_silent_node_is_left_out_when_the_servers_own_word_confirms_it(
    server: ApiServer, nodes: Nodes, monkeypatch: pytest.MonkeyPatch
) -> None:
    ahead = Ahead(monkeypatch)
    await nodes.add_nodes("mute-1", "mute-2", "mute-3")
    async with controller(server, ahead.clock):
        await nodes.add_check("mute", nodes=["mute-1", "mute-2", "mute-3"], timeoutSeconds=3_600)
        await nodes.start_all("mute", 3)
        await nodes.until_check("mute", round=0)
        await nodes.answer("mute", Agents(local=lambda node: None if node == "mute-2" else GOOD))
        await ahead.pass_time(nodes, "mute", "0")
        status = await nodes.until_check("mute", round=1)
        assert [(left["node"], left["reason"]) for left in status["withdrawn"]] == [("mute-2", "TooLate")]
        status = await nodes.carry_out("mute", Agents())
        assert status["inconclusive"] == ["mute-2"] and not status.get("faultyNodes")


async def test_unknown_node_fails_the_check(server: ApiServer, nodes: Nodes) -> None:
    async with controller(server):
        await nodes.add_check("lost", nodes=["nowhere"])
        failed = await nodes.until_condition("lost", "Failed", "NodeNotFound")
        assert failed["message"] == "there is no node nowhere"
        with pytest.raises(NotFound):
            await nodes.client.get(ELASTICWORKERS, "lost-check-0", NAMESPACE)


def looks(manager: Manager) -> float:
    """At checks, that ended in another to follow."""
    labels = {"controller": "nodecheck", "result": "requeue_after"}
    return manager.metrics_registry.get_sample_value("controller_runtime_reconcile_total", labels) or 0.0


@pytest.mark.parametrize("by", ["name", "label", "job"])
async def test_what_was_made_a_moment_before_its_check_is_waited_for(
    server: ApiServer, nodes: Nodes, by: str
) -> None:
    name = f"new-{by}"
    async with controller(server) as manager:
        await manager.cache.wait_synced(PATIENCE_SECONDS)
        for resource in (NODES, ELASTICJOBS):
            manager.cache._watching[resource].cancel()  # it hangs
        if by == "job":
            await nodes.submit(name)
            await nodes.add_check(name, jobName=name)
        else:
            node = {"apiVersion": "v1", "kind": "Node", "metadata": {"name": name, "labels": {"new": by}}}
            await nodes.client.create(NODES, node)
            await nodes.add_check(
                name, **({"nodes": [name]} if by == "name" else {"nodeSelector": {"new": by}})
            )

        async def failed() -> bool:
            return (await nodes.check(name)).get("status", {}).get("phase") == "Failed"

        async def failed_or_put_off() -> bool:
            return looks(manager) >= 2 or await failed()

        await nodes.until("looks at it", failed_or_put_off)
        assert not await failed()
        await manager.cache.list_again()
        if by == "job":
            await nodes.until_condition(name, "Running", "WaitingForJob")
        else:
            await nodes.until_check(name, nodes=[name])


async def test_check_of_a_job_that_is_gone_is_refused_by_the_servers_own_word(
    server: ApiServer, nodes: Nodes
) -> None:
    async with controller(server):
        await nodes.add_check("jobless", jobName="nobody")
        await nodes.until_condition("jobless", "Failed", "JobNotFound")
        await nodes.add_check("unlabelled", nodeSelector={"no": "such"})
        await nodes.until_condition("unlabelled", "Failed", "NoNodes")


@pytest.mark.parametrize(
    ("spec", "reason"),
    [
        ({"nodeSelector": {"pool": "two words"}}, "NoNodes"),
        ({"nodeSelector": {"pool": "a,spot"}}, "NoNodes"),
        *(({"nodes": [name]}, "NodeNotFound") for name in ("", ".", "..")),
        *(({"jobName": name}, "JobNotFound") for name in ("", ".", "..")),
    ],
)
async def test_check_of_what_can_be_no_name_or_label_is_refused_and_not_waited_for(
    server: ApiServer, nodes: Nodes, spec: JSON, reason: str
) -> None:
    """Some of these mean something else to the server, which then has it."""
    name = f"nothing-{zlib.crc32(str(spec).encode())}"
    node = {"metadata": {"name": name, "labels": {"pool": "a", "spot": "yes"}}}
    await nodes.client.create(NODES, {"apiVersion": "v1", "kind": "Node"} | node)
    async with controller(server):
        await nodes.add_check(name, **spec)
        await nodes.until_condition(name, "Failed", reason)


async def test_machine_that_takes_over_a_name_during_a_check_is_not_judged_by_the_last_ones_tests(
    server: ApiServer, nodes: Nodes
) -> None:
    names = [f"anew-{i}" for i in range(1, 7)]
    await nodes.add_nodes(*names)
    async with controller(server):
        await nodes.add_check("anew", nodes=names)
        await nodes.start_all("anew", 6)
        await nodes.until_check("anew", round=0)
        await nodes.answer("anew", Agents(local=lambda node: BAD if node == "anew-6" else GOOD))
        began = (await nodes.until_check("anew", round=1))["startTime"]

        async def replaced() -> bool:
            """The times when Nodes were made are whole seconds."""
            await nodes.client.delete(NODES, "anew-6")
            await nodes.add_nodes("anew-6")
            made = (await nodes.client.get(NODES, "anew-6"))["metadata"]["creationTimestamp"]
            return datetime.fromisoformat(made) > datetime.fromisoformat(began)

        await nodes.until("another Node of the name", replaced)
        status = await nodes.carry_out("anew", Agents())
        assert status["inconclusive"] == ["anew-6"] and not status.get("faultyNodes")
        assert [(left["node"], left["reason"]) for left in status["withdrawn"]] == [
            ("anew-6", "NodeReplaced")
        ]


async def test_finished_check_is_deleted_when_its_time_is_over_and_not_before(
    server: ApiServer, nodes: Nodes, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("reconcilers.nodecheck.reconciler.CONSEQUENCES_SECONDS", 0.0)
    await nodes.add_nodes("kept")
    hours_ago = {"old": 2, "young": 0, "forever": 2}
    for name, hours in hours_ago.items():
        spec = {} if name == "forever" else {"ttlSecondsAfterFinished": 3_600}
        await nodes.add_check(name, nodes=["kept"], **spec)
        ended = (datetime.now(UTC) - timedelta(hours=hours)).strftime("%Y-%m-%dT%H:%M:%SZ")
        patch = {"status": {"phase": "Succeeded", "nodes": ["kept"], "completionTime": ended}}
        await nodes.client.patch(NODECHECKS, name, patch, NAMESPACE, subresource="status")
    async with controller(server) as manager:

        async def gone() -> bool:
            with suppress(NotFound):
                await nodes.check("old")
                return False
            return looks(manager) >= 1  # the young one's, which is looked at again when its time is over

        await nodes.until("the old one to go", gone)
        assert await nodes.check("young") and await nodes.check("forever")


async def test_time_that_leaves_none_for_what_follows_from_a_check_is_refused(nodes: Nodes) -> None:
    with pytest.raises(Invalid, match="ttlSecondsAfterFinished"):
        await nodes.add_check("hasty", nodes=["a"], ttlSecondsAfterFinished=0)


POLICIES, BINDINGS = (
    Resource(
        "admissionregistration.k8s.io", "v1", f"validatingadmissionpolic{plural}", kind, namespaced=False
    )
    for plural, kind in (
        ("ies", "ValidatingAdmissionPolicy"),
        ("ybindings", "ValidatingAdmissionPolicyBinding"),
    )
)


async def refuse_workers(nodes: Nodes, check: str) -> None:
    """A policy of the cluster's, as a quota would, lets nobody make the check's workers."""
    rule = {
        "apiGroups": [ELASTICWORKERS.group],
        "apiVersions": ["*"],
        "operations": ["CREATE"],
        "resources": [ELASTICWORKERS.plural],
    }
    spec = {
        "matchConstraints": {"resourceRules": [rule]},
        "validations": [
            {"expression": f"!object.metadata.name.startsWith('{check}-')", "message": "over quota"}
        ],
    }
    binding = {"policyName": check, "validationActions": ["Deny"]}
    for resource, wanted in ((POLICIES, spec), (BINDINGS, binding)):
        made = {"apiVersion": resource.api_version, "kind": resource.kind, "metadata": {"name": check}}
        await nodes.client.create(resource, made | {"spec": wanted})


async def test_check_whose_workers_are_refused_says_so_and_comes_to_an_end(
    server: ApiServer, nodes: Nodes, monkeypatch: pytest.MonkeyPatch
) -> None:
    ahead = Ahead(monkeypatch)
    await nodes.add_nodes("barred-1", "barred-2")
    await refuse_workers(nodes, "barred")
    async with controller(server, ahead.clock):
        await nodes.add_check("barred", nodes=["barred-1", "barred-2"], timeoutSeconds=3_600)
        waits = await nodes.until_condition("barred", "Running", "WorkerRefused")
        assert "over quota" in waits["message"]
        await ahead.pass_time(nodes, "barred", AGENTS)
        status = await nodes.until_check("barred", phase="Succeeded")
        assert status["inconclusive"] == ["barred-1", "barred-2"] and not status.get("faultyNodes")


async def test_workers_that_were_refused_for_a_while_are_made_when_that_is_over(
    server: ApiServer, nodes: Nodes, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("reconcilers.runtime.refused.RETRY_SECONDS", 0.5)
    await nodes.add_nodes("later-1", "later-2")
    await refuse_workers(nodes, "later")
    async with controller(server):
        await nodes.add_check("later", nodes=["later-1", "later-2"])
        await nodes.until_condition("later", "Running", "WorkerRefused")
        await nodes.client.delete(BINDINGS, "later")
        await nodes.start_all("later", 2)
        assert not (await nodes.carry_out("later", Agents())).get("inconclusive")
