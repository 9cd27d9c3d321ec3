"""A check after repair: a repaired node comes back without a person, and one that is not never does."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from datetime import datetime, timedelta
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from controller.resources import NAMESPACES, NODES
from crds import names
from crds.findings import Cause, Finding, Verdict
from reconcilers.cordon.policy import ENOUGH_PASSES
from reconcilers.findings.record import read_record
from reconcilers.observed.options import CordonMode, CordonOptions
from reconcilers.recheck.policy import (
    FIRST_SECONDS,
    LONGEST_SECONDS,
    MOST_FAILURES,
    PARTNERS,
    CordonedNode,
    check_of,
    due_at,
    is_left_to_us,
    partners,
    repaired_at,
)
from reconcilers.runtime.clock import LONG_AGO
from reconcilers.runtime.kinds import NODECHECKS
from tests.reconcilers.api import NAMESPACE
from tests.reconcilers.build import NOW, later, verdicts
from tests.reconcilers.check_stage import Agents, Stage
from tests.reconcilers.test_cordon import UNHEALTHY, Ward

DAY = 86_400.0


def finding(seconds: float, verdict: str = "Faulty", cause: Cause = Cause.LOCAL_TEST, **more: Any) -> Finding:
    causes = () if verdict == "Healthy" else (cause,)
    return Finding(node="a", verdict=verdict, causes=causes, time=later(seconds), uid=f"{seconds}", **more)


def condition(type_: str, status: str, since: datetime, reason: str = "x") -> dict[str, str]:
    return {"type": type_, "status": status, "reason": reason, "lastTransitionTime": since.isoformat()}


def node(name: str, *conditions: dict[str, str], taints: tuple[str, ...] = (), **more: Any) -> dict[str, Any]:
    ready = condition("Ready", "True", LONG_AGO)
    status = {"conditions": [*({"Ready": ready} | {c["type"]: c for c in conditions}).values()]} | more
    spec = {"taints": [{"key": key, "effect": "NoSchedule"} for key in taints]}
    return {"metadata": {"name": name, "uid": f"uid-{name}"}, "spec": spec, "status": status}


# --- when -------------------------------------------------------------------------------------------------


def test_the_wait_doubles_with_each_failed_check_and_ends_without_a_sign_of_repair() -> None:
    record, waits = [finding(0)], list[float]()
    while (due := due_at(CordonedNode(record[-1], record))) is not None:
        waits.append((due - record[-1].time).total_seconds())
        record = [*record, finding((due - NOW).total_seconds())]
    assert waits == [FIRST_SECONDS * 2**at for at in range(MOST_FAILURES)]
    assert len(record) == MOST_FAILURES + 1
    back = due_at(CordonedNode(record[-1], record, repaired_at=record[-1].time + timedelta(seconds=1)))
    assert back == record[-1].time + timedelta(seconds=FIRST_SECONDS), "the machine was away"


@given(
    times=st.lists(st.tuples(st.integers(0, 10**6), st.sampled_from(list(Verdict))), max_size=20),
    ends=st.lists(st.integers(0, 10**6), max_size=20),
    repaired=st.integers(-1, 10**6),
    cause=st.sampled_from(list(Cause)),
)
def test_a_check_comes_after_the_newest_word_and_within_a_day_of_it_or_needs_a_sign_of_repair(
    times: list[tuple[int, Verdict]], ends: list[int], repaired: int, cause: Cause
) -> None:
    record = [finding(seconds, verdict) for seconds, verdict in sorted(times)]
    cordoned = CordonedNode(finding(0, cause=cause), record, [*map(later, ends)], later(repaired))
    due = due_at(cordoned)
    if due is None:
        assert cordoned.repaired_at <= cordoned.last
        assert cordoned.failures > MOST_FAILURES or cause in (Cause.HARDWARE_ERROR, Cause.NODE_CONDITION)
    else:
        assert FIRST_SECONDS <= (due - cordoned.last).total_seconds() <= LONGEST_SECONDS


@pytest.mark.parametrize(
    ("condition", "expected"),
    [
        (condition("Ready", "True", later(9)), later(9)),
        (condition("Ready", "False", later(9)), LONG_AGO),
        (condition("GPUMissing", "False", later(9)), later(9)),
        (condition("AcceleratedHardwareReady", "True", later(9)), later(9)),
        (condition("GpuMemWatch", "False", later(9), "GpuMemWatchIsHealthy"), later(9)),
        (condition("ElasticNodeCheck", "False", later(9), "ElasticNodeCheckIsHealthy"), LONG_AGO),
        (condition("MemoryPressure", "False", later(9)), LONG_AGO),
    ],
)
def test_signs_of_repair(condition: dict[str, str], expected: datetime) -> None:
    assert repaired_at(node("a", condition)) == expected


@pytest.mark.parametrize(
    ("raw", "expected"),
    [
        (node("a", taints=(names.TAINT_UNHEALTHY,)), True),
        (node("a", taints=(names.TAINT_UNHEALTHY, "node.kubernetes.io/unschedulable")), False),
        (node("a", condition("Ready", "Unknown", NOW)), False),
        (node("a", condition("GpuMemWatch", "True", NOW, "GpuMemWatchIsNotHealthy")), False),
        (node("a", capacity={"nvidia.com/gpu": "8"}, allocatable={"nvidia.com/gpu": "7"}), False),
    ],
)
def test_nothing_is_tested_that_somebody_else_keeps_out_or_calls_faulty(
    raw: dict[str, Any], expected: bool
) -> None:
    assert is_left_to_us(raw) is expected


@pytest.mark.parametrize(
    ("status", "by", "expected"), [("True", "True", True), ("True", "", False), ("False", "True", False)]
)
def test_a_node_that_nvsentinel_has_cordoned_on_our_word_is_tested_or_both_would_wait_for_ever(
    status: str, by: str, expected: bool
) -> None:
    reason = "ElasticNodeCheckIsNotHealthy" if status == "True" else "ElasticNodeCheckIsHealthy"
    raw = node(
        "a",
        condition(names.NVSENTINEL_CHECK, status, NOW, reason),
        taints=(names.TAINT_UNHEALTHY, "node.kubernetes.io/unschedulable"),
    )
    raw["metadata"]["annotations"] = {"quarantineHealthEventIsCordoned": by}
    assert is_left_to_us(raw) is expected


# --- with whom --------------------------------------------------------------------------------------------


def test_partners_are_free_healthy_nodes_of_the_same_kind_and_others_at_each_turn() -> None:
    eight = {"capacity": {"nvidia.com/gpu": "8"}, "allocatable": {"nvidia.com/gpu": "8"}}
    gpu = "nvidia.com/gpu"
    bad = node("bad", taints=(names.TAINT_UNHEALTHY, gpu), **eight)
    good = [node(f"good-{number}", taints=(gpu,), **eight) for number in range(9)]
    unfit = [
        bad,
        node("small"),
        node("cordoned-too", taints=(names.TAINT_UNHEALTHY, gpu), **eight),
        node("drained", taints=("node.kubernetes.io/unschedulable",), **eight),
        node("control-plane", taints=("node-role.kubernetes.io/control-plane",), **eight),
        node("gone", condition("Ready", "Unknown", NOW), **eight),
    ]
    turns = [partners(bad, [*unfit, *good], {"good-0"}, f"turn-{number}") for number in range(30)]
    assert all(len(set(turn)) == PARTNERS for turn in turns)
    assert {name for turn in turns for name in turn} == {f"good-{number}" for number in range(1, 9)}
    assert partners(bad, unfit, (), "turn") == []
    assert partners(bad, [*unfit, good[0]], (), "turn") == ["good-0"]


@pytest.mark.parametrize(
    "announces",
    [condition("MaintenancePlanned", "True", NOW), condition("DrainInProgress", "True", NOW)],
    ids=lambda each: each["type"],
)
def test_nodes_that_announce_evictions_are_partners_only_where_others_do_not_suffice(
    announces: dict[str, str],
) -> None:
    going = [node(f"going-{number}", announces) for number in range(9)]
    staying = [node(f"staying-{number}") for number in range(PARTNERS)]
    for turn in map(str, range(20)):
        everybody = [*going, *staying]
        assert set(partners(node("bad"), everybody, (), turn)) == {n["metadata"]["name"] for n in staying}
        assert partners(node("bad"), [*going, staying[0]], (), turn)[0] == "staying-0"
        assert len(partners(node("bad"), going, (), turn)) == PARTNERS


@pytest.mark.parametrize(
    ("beside", "is_broken", "expected"),
    [
        (["b", "c", "d"], True, "Faulty"),
        (["b", "c", "d"], False, "Healthy"),
        (["b"], True, "Inconclusive"),
        (["b"], False, "Healthy"),
    ],
)
async def test_the_check_that_is_made_tells_a_repaired_node_from_a_broken_one(
    beside: list[str], is_broken: bool, expected: str
) -> None:
    """By the real checks: with one partner a broken node is not accused, and not passed either."""
    staged = Stage(agents=Agents(passes=lambda _, members: not (is_broken and "a" in members)))
    staged.add_nodes("a", *beside)
    spec = check_of(node("a"), beside, "default", CordonedNode(finding(0)))["spec"]
    staged.add_check("c", **spec)
    check = await staged.play()
    assert staged.verdicts()["a"] == expected
    tests = [places for round_ in check.status.rounds for places in round_.tests if 0 in places]
    met = {place for places in tests for place in places} - {0}
    assert len(met) == len(beside), "it has met each of them"


# --- the whole of it --------------------------------------------------------------------------------------


class Workshop(Ward):
    """A ward whose nodes are tested by the truth: a node passes a check once it is repaired."""

    broken: frozenset[str] = frozenset()
    answers = 0

    async def rechecks(self) -> list[dict[str, Any]]:
        found = (await self.client.list(NODECHECKS, NAMESPACE))["items"]
        return [c for c in found if names.LABEL_RECHECK in c["metadata"].get("labels", {})]

    async def live(self, seconds: float) -> None:
        """Let this time pass; each check after repair ends a minute after it was made."""
        end = self.api.seconds + seconds
        while self.api.seconds < end:
            await self.settle(60.0)
            for check in await self.rechecks():
                if check.get("status", {}).get("phase") not in ("Succeeded", "Failed"):
                    await self._answer(check)
        await self.settle()

    async def _answer(self, check: dict[str, Any]) -> None:
        self.answers += 1
        nodes = check["spec"]["nodes"]
        faulty = [name for name in nodes if name in self.broken]
        passed = [name for name in nodes if name not in faulty]
        status = {"phase": "Succeeded", "startTime": self.timestamp(), "completionTime": self.timestamp()}
        status |= verdicts(nodes, passed, faultyNodes=faulty)
        patch = {"status": status | {"faultyNodes": faulty}}
        await self.client.patch(NODECHECKS, check["metadata"]["name"], patch, NAMESPACE, subresource="status")

    async def comes_back_ready(self, name: str) -> None:
        """The machine was away, and is Ready again."""
        ours = [c for c in (await self.node(name))["status"]["conditions"] if c["type"] != "Ready"]
        ready = condition("Ready", "True", self.now(), "KubeletReady")
        await self.client.patch(NODES, name, {"status": {"conditions": [*ours, ready]}}, subresource="status")


@pytest.fixture
async def open_workshop() -> AsyncIterator[Callable[..., Any]]:
    opened: list[Workshop] = []

    async def open_(mode: CordonMode = CordonMode.ENFORCE, **options: Any) -> Workshop:
        each = Workshop()
        opened.append(each)
        await each.may_cordon("true")
        await each.add_nodes("a", "b", "c", "d")
        each.begin(cordon=CordonOptions(mode, **options))
        each.broken = frozenset({"a"})
        await each.judge("a", "b", "c", "d", faultyNodes=["a"])
        await each.settle(1.0)
        return each

    yield open_
    for each in opened:
        each.end()


@pytest.mark.played
async def test_a_repaired_node_is_back_without_a_person(open_workshop: Callable[..., Any]) -> None:
    workshop = await open_workshop()
    assert await workshop.taints("a") == [UNHEALTHY]
    await workshop.live(FIRST_SECONDS + 300)
    (first,) = await workshop.rechecks()
    assert first["spec"]["nodes"][0] == "a" and sorted(first["spec"]["nodes"][1:]) == ["b", "c", "d"]
    assert await workshop.taints("a") == [UNHEALTHY], "it failed again"
    workshop.broken = frozenset()
    await workshop.live(2 * FIRST_SECONDS + 300)
    assert await workshop.taints("a") == []
    assert await workshop.said("a") == ("False", "CheckPassed")
    await workshop.live(DAY)
    assert len(await workshop.rechecks()) == 2, "it is in service, and not tested any more"


@pytest.mark.played
async def test_a_node_that_is_not_repaired_never_comes_back(open_workshop: Callable[..., Any]) -> None:
    workshop = await open_workshop()
    for _ in range(3):
        await workshop.live(10 * 3_600)
        assert await workshop.taints("a") == [UNHEALTHY]
    assert workshop.answers == MOST_FAILURES, "without a sign of repair nobody tries for ever"
    await workshop.comes_back_ready("a")
    await workshop.live(2 * FIRST_SECONDS)
    assert workshop.answers == MOST_FAILURES + 1
    assert await workshop.taints("a") == [UNHEALTHY]


@pytest.mark.played
async def test_a_fault_that_comes_and_goes_takes_as_many_passes_as_the_cordon_asks_for(
    open_workshop: Callable[..., Any],
) -> None:
    workshop = await open_workshop()
    passed = [{"number": 1, "tests": [[at, at] for at in range(4)], "failed": []}]
    await workshop.judge("a", "b", "c", "d", faultyNodes=["a"], rounds=passed)
    workshop.broken = frozenset()
    await workshop.live(3_600)
    assert await workshop.taints("a") == [UNHEALTHY], "it passed all checks, and not often enough"
    await workshop.live(3_600)
    assert await workshop.taints("a") == []
    record = read_record(await workshop.node("a"))
    assert sum(finding.passed for finding in record if finding.healthy) >= ENOUGH_PASSES


@pytest.mark.played
async def test_checks_with_the_label_in_a_namespace_of_users_hold_nobody_up(
    open_workshop: Callable[..., Any],
) -> None:
    workshop = await open_workshop()
    await workshop.live(FIRST_SECONDS - 60)
    workshop.api.create(NAMESPACES, {"metadata": {"name": "team"}})
    for number in range(9):
        metadata = {"name": f"mine-{number}", "namespace": "team", "labels": {names.LABEL_RECHECK: "true"}}
        await workshop.client.create(NODECHECKS, NODECHECKS.manifest(metadata, spec={"nodes": ["a", "b"]}))
    await workshop.live(120)
    assert len(await workshop.rechecks()) == 1


@pytest.mark.played
@pytest.mark.parametrize("label", ["true", None])
async def test_the_check_is_in_the_controllers_own_namespace_where_that_counts(
    label: str | None, open_workshop: Callable[..., Any]
) -> None:
    workshop = await open_workshop(namespace="platform")
    metadata = {"name": "platform", "labels": {names.LABEL_MAY_CORDON: label} if label else {}}
    workshop.api.create(NAMESPACES, {"metadata": metadata})
    await workshop.settle(FIRST_SECONDS + 60)
    (check,) = [
        c for c in workshop.api.list(NODECHECKS) if names.LABEL_RECHECK in c["metadata"].get("labels", {})
    ]
    assert check["metadata"]["namespace"] == ("platform" if label else NAMESPACE)


@pytest.mark.played
async def test_a_dry_run_tests_nothing(open_workshop: Callable[..., Any]) -> None:
    workshop = await open_workshop(CordonMode.REPORT)
    await workshop.live(3_600)
    assert await workshop.rechecks() == []
