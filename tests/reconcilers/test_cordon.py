"""The cordon by the real reconcilers: what checks and jobs say of nodes, and what becomes of the nodes."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Any

import pytest

from controller.resources import NAMESPACES, NODES
from crds import names
from reconcilers.findings.record import read_record
from reconcilers.findings.reference import Reference, read_reference
from reconcilers.observed.options import CordonMode, CordonOptions
from reconcilers.runtime.kinds import ELASTICWORKERS, NODECHECKS
from tests.reconcilers.api import NAMESPACE, Write
from tests.reconcilers.build import verdicts
from tests.reconcilers.played import Played

pytestmark = pytest.mark.played

UNHEALTHY = {"key": names.TAINT_UNHEALTHY, "value": "CheckFailed", "effect": "NoSchedule"}


class Ward(Played):
    """Plays those who add nodes, and the checks that judge them, each a second newer than the last."""

    checks = 0

    def timestamp(self) -> str:
        return self.now().strftime("%Y-%m-%dT%H:%M:%SZ")

    async def add_nodes(self, *nodes: str, **spec: Any) -> None:
        for name in nodes:
            node = {"apiVersion": "v1", "kind": "Node", "metadata": {"name": name}, "spec": spec}
            await self.client.create(NODES, node)
            ready = {"type": "Ready", "status": "True", "reason": "KubeletReady", "message": ""}
            patch = {"status": {"conditions": [ready]}}
            await self.client.patch(NODES, name, patch, subresource="status")

    async def judge(self, *nodes: str, cordon: bool = True, **status: Any) -> str:
        """A finished check of these nodes; its name."""
        self.checks += 1
        self.api.seconds += 1
        name = f"check-{self.checks}"
        check = {
            "apiVersion": NODECHECKS.api_version,
            "kind": NODECHECKS.kind,
            "metadata": {"name": name, "namespace": NAMESPACE},
            "spec": {"nodes": list(nodes), "cordon": cordon},
        }
        await self.client.create(NODECHECKS, check)
        ended = {"phase": "Succeeded", "completionTime": self.timestamp()}
        passed = [node for node in nodes if node not in status.get("faultyNodes", ())]
        ended |= verdicts(nodes, passed, **status)
        patch = {"status": ended | status}
        await self.client.patch(NODECHECKS, name, patch, NAMESPACE, subresource="status")
        return name

    async def hardware_error(self, node: str) -> str:
        """An ElasticWorker whose Pod has ended with one on a node; its name."""
        metadata = {"name": "j-worker-0", "namespace": NAMESPACE}
        spec = {"jobName": "j", "type": "worker", "index": 0}
        worker = {"apiVersion": ELASTICWORKERS.api_version, "kind": ELASTICWORKERS.kind}
        await self.client.create(ELASTICWORKERS, worker | {"metadata": metadata, "spec": spec})
        end = {"incarnation": 1, "exitClass": "HardwareError", "nodeName": node, "time": self.timestamp()}
        patch = {"status": {"lastExit": end}}
        await self.client.patch(ELASTICWORKERS, "j-worker-0", patch, NAMESPACE, subresource="status")
        return "j-worker-0"

    async def may_cordon(self, value: str | None) -> None:
        """What the administrator says of the namespace."""
        labels = {"metadata": {"labels": {names.LABEL_MAY_CORDON: value}}}
        await self.client.patch(NAMESPACES, NAMESPACE, labels)

    async def node(self, name: str) -> dict[str, Any]:
        return await self.client.get(NODES, name)

    async def taints(self, name: str) -> list[dict[str, Any]]:
        return (await self.node(name))["spec"].get("taints", [])

    async def said(self, name: str, type_: str = names.CONDITION_UNHEALTHY) -> tuple[str, str] | None:
        """Status and reason of one of our conditions."""
        conditions = (await self.node(name))["status"]["conditions"]
        assert any(c["type"] == "Ready" for c in conditions), "another's condition was lost"
        ours = [c for c in conditions if c["type"] == type_]
        return (ours[0]["status"], ours[0]["reason"]) if ours else None

    async def until_suspected(self, name: str, status: str, reason: str) -> dict[str, Any]:
        return await self.until_said(name, status, reason, names.CONDITION_SUSPECTED)

    async def until_said(
        self, name: str, status: str, reason: str, type_: str = names.CONDITION_UNHEALTHY
    ) -> dict[str, Any]:
        async def check() -> bool:
            return await self.said(name, type_) == (status, reason)

        await self.until(f"{name}: {reason}", check)
        return await self.node(name)

    async def until_recorded(self, name: str, checks: int) -> None:
        """Its record has the results of so many checks."""

        async def check() -> bool:
            return len(read_record(await self.node(name))) == checks

        await self.until(f"{name}: {checks} results", check)


@pytest.fixture
async def ward() -> AsyncIterator[Ward]:
    each = Ward()
    await each.may_cordon("true")
    each.begin()
    yield each
    each.end()


async def test_node_keeps_how_fast_its_class_was_when_it_first_passed(ward: Ward) -> None:
    def speed(tflops: float, class_: str = "H100") -> dict[str, Any]:
        return {"hardwareClass": class_, "nodes": "0", "figures": {"gemm_bf16_tflops": tflops}}

    async def kept() -> Reference | None:
        return read_reference(await ward.node("a"))

    async def of_b200() -> bool:
        reference = await kept()
        return reference is not None and reference.hardware_class == "B200"

    await ward.add_nodes("a")
    for at, tflops in enumerate((650.0, 500.0), start=1):
        await ward.judge("a", classSpeeds=[speed(tflops)])
        await ward.until_recorded("a", at)
    reference = await kept()
    assert reference is not None and reference.figures == {"gemm_bf16_tflops": 650.0}
    await ward.judge("a", classSpeeds=[speed(1500.0, "B200")])
    await ward.until("a's reference is that of its new hardware", of_b200)


async def test_faulty_node_is_cordoned_told_of_and_released_by_a_later_pass(ward: Ward) -> None:
    await ward.add_nodes("a", "b", "slow", "open")
    check = await ward.judge(
        "a", "b", "slow", "open", faultyNodes=["b"], stragglers=["slow"], inconclusive=["open"]
    )
    node = await ward.until_said("b", "True", "CheckFailed")
    assert node["spec"] == {"taints": [UNHEALTHY]}
    for name in ("b", check):
        await ward.event(name, "Cordoned")
    await ward.until_suspected("slow", "True", "Straggler")
    await ward.until_suspected("open", "True", "Inconclusive")
    for name in ("a", "slow", "open"):
        assert await ward.said(name) is None and not await ward.taints(name)

    await ward.judge("a", "b")
    node = await ward.until_said("b", "False", "CheckPassed")
    assert not node["spec"].get("taints")
    await ward.event("b", "CordonLifted")


async def test_cordon_and_taints_made_by_hand_stay(ward: Ward) -> None:
    theirs = {"key": "team", "value": "x", "effect": "NoExecute"}
    await ward.add_nodes("a", unschedulable=True, taints=[theirs])
    await ward.judge("a", faultyNodes=["a"])
    node = await ward.until_said("a", "True", "CheckFailed")
    assert node["spec"]["taints"] == [theirs, UNHEALTHY]
    await ward.judge("a")
    node = await ward.until_said("a", "False", "CheckPassed")
    assert node["spec"]["taints"] == [theirs] and node["spec"]["unschedulable"] is True


async def test_one_node_is_cordoned_and_the_next_is_held_until_there_is_room(ward: Ward) -> None:
    await ward.add_nodes("a", "b", "c")
    check = await ward.judge("a", "b", "c", faultyNodes=["c", "a", "b"])
    await ward.until_said("a", "True", "CheckFailed")
    for name in ("b", "c"):
        node = await ward.until_suspected(name, "True", "CordonHeld")
        assert not node["spec"].get("taints")
    await ward.event(check, "CordonHeld")

    await ward.judge("a")
    await ward.until_said("b", "True", "CheckFailed")
    assert await ward.said("c", names.CONDITION_SUSPECTED) == ("True", "CordonHeld")
    await ward.client.delete(NODES, "b")
    await ward.until_said("c", "True", "CheckFailed")


async def test_a_taint_that_is_removed_by_hand_stays_away_until_a_newer_verdict(ward: Ward) -> None:
    await ward.add_nodes("a")
    await ward.judge("a", faultyNodes=["a"])
    await ward.until_said("a", "True", "CheckFailed")
    await ward.client.patch(NODES, "a", {"spec": {"taints": None}})
    await ward.until_suspected("a", "True", "CordonOverruled")
    await ward.judge("a", inconclusive=["a"])
    await ward.judge("a", faultyNodes=["a"])
    await ward.until_said("a", "True", "CheckFailed")
    assert await ward.taints("a") == [UNHEALTHY]


async def test_hardware_error_of_a_job_cordons_the_node_until_a_newer_pass(ward: Ward) -> None:
    await ward.add_nodes("a")
    worker = await ward.hardware_error("a")
    await ward.until_said("a", "True", "HardwareError")
    assert (await ward.taints("a"))[0]["value"] == "HardwareError"
    await ward.event(worker, "Cordoned")

    check = await ward.judge("a")
    await ward.until_said("a", "False", "CheckPassed")
    await ward.client.delete(NODECHECKS, check, NAMESPACE)
    await ward.client.patch(NODES, "a", {"spec": {"unschedulable": True}})  # a look at the node
    await ward.client.patch(NODES, "a", {"spec": {"unschedulable": None}})
    await ward.settle(1.0)
    assert not await ward.taints("a")


@pytest.mark.parametrize("label", [None, "yes"])
async def test_nothing_said_in_a_namespace_cordons_until_an_administrator_allows_it(
    ward: Ward, label: str | None
) -> None:
    await ward.may_cordon(label)
    await ward.add_nodes("a", "b")
    worker = await ward.hardware_error("a")
    check = await ward.judge("b", faultyNodes=["b"])
    for name in (worker, check):
        await ward.event(name, "CordonNotAllowed")
    for name in ("a", "b"):
        node = await ward.node(name)
        assert await ward.said(name) is None and not node["spec"]
        assert names.ANNOTATION_CORDON not in node["metadata"].get("annotations", {})

    await ward.may_cordon("true")
    await ward.until_said("a", "True", "HardwareError")
    await ward.until_suspected("b", "True", "CordonHeld")


async def test_cordon_outlives_the_label_and_no_pass_without_it_lifts_it(ward: Ward) -> None:
    await ward.add_nodes("a", "b")
    await ward.judge("a", faultyNodes=["a"])
    await ward.until_said("a", "True", "CheckFailed")
    await ward.may_cordon(None)
    await ward.judge("a", "b")
    check = await ward.judge("b", faultyNodes=["b"])
    await ward.event(check, "CordonNotAllowed")
    assert await ward.said("a") == ("True", "CheckFailed") and await ward.taints("a") == [UNHEALTHY]

    await ward.may_cordon("true")
    await ward.until_said("a", "False", "CheckPassed")
    await ward.until_said("b", "True", "CheckFailed")


async def test_crash_between_the_two_writes_heals(ward: Ward) -> None:
    await ward.add_nodes("a")
    check = await ward.judge("a", faultyNodes=["a"])
    before = await ward.until_said("a", "True", "CheckFailed")
    ward.end()
    kept = [c for c in before["status"]["conditions"] if c["type"] == "Ready"]
    await ward.client.patch(NODES, "a", {"status": {"conditions": kept}}, subresource="status")
    await ward.client.delete(NODECHECKS, check, NAMESPACE)
    ward.begin()
    after = await ward.until_said("a", "True", "CheckFailed")
    assert after["spec"] == before["spec"]
    assert after["metadata"]["annotations"] == before["metadata"]["annotations"]


async def test_kubelets_that_write_at_the_same_time_are_no_obstacle(ward: Ward) -> None:
    beats = 0

    def beat(write: Write) -> None:
        nonlocal beats
        if write.resource == NODES and beats < 3:
            beats += 1
            ward.api.patch(NODES, "a", {"metadata": {"annotations": {"beat": str(beats)}}})

    await ward.add_nodes("a")
    assert ward.process is not None
    ward.process.before_write = beat
    await ward.judge("a", faultyNodes=["a"])
    node = await ward.until_said("a", "True", "CheckFailed")
    assert node["spec"]["taints"] == [UNHEALTHY] and beats == 3


async def test_dry_run_reports_and_touches_no_node(ward: Ward) -> None:
    ward.begin(cordon=CordonOptions(CordonMode.REPORT))
    await ward.add_nodes("a", "b")
    await ward.judge("a", "b", faultyNodes=["a", "b"])
    await ward.event("a", "CordonReported")
    await ward.until_suspected("a", "True", "CordonReported")
    await ward.until_suspected("b", "True", "CordonHeld")
    await ward.judge("a")
    await ward.until_suspected("a", "False", "CheckPassed")
    await ward.until_suspected("b", "True", "CordonReported")
    for name in ("a", "b"):
        node = await ward.node(name)
        assert not node["spec"].get("taints")
        assert names.ANNOTATION_CORDON not in node["metadata"].get("annotations", {})


async def test_word_of_a_namespace_without_the_label_counts_if_the_nodes_own_condition_agrees(
    ward: Ward,
) -> None:
    await ward.may_cordon(None)
    await ward.add_nodes("a", "b")
    await ward.judge("a", "b", faultyNodes=["a"])
    await ward.settle(1.0)
    assert await ward.said("a") is None
    ready = {"type": "Ready", "status": "True", "reason": "KubeletReady", "message": ""}
    missing = {"type": "GPUMissing", "status": "True", "reason": "GPUMissing", "message": "7 of 8 GPUs"}
    patch = {"status": {"conditions": [ready, missing]}}
    await ward.client.patch(NODES, "a", patch, subresource="status")
    node = await ward.until_said("a", "True", "CheckFailed")
    (told,) = (c for c in node["status"]["conditions"] if c["type"] == names.CONDITION_UNHEALTHY)
    assert "its condition GPUMissing is True by node-problem-detector: 7 of 8 GPUs" in told["message"]
    assert "Do: reboot it" in told["message"]


async def test_record_of_a_node_has_its_last_checks_and_no_more_than_there_is_room_for(ward: Ward) -> None:
    await ward.add_nodes("a", "b")
    await ward.judge("a", "b")
    await ward.judge("a", "b", faultyNodes=["b"])
    await ward.judge("a", cordon=False, faultyNodes=["a"])
    await ward.until_said("b", "True", "CheckFailed")

    async def is_kept() -> bool:
        return [r.verdict for r in read_record(await ward.node("b"))] == ["Healthy", "Faulty"]

    await ward.until("both checks are in the record", is_kept)
    assert {r.verdict for r in read_record(await ward.node("a"))} == {"Healthy"}
