"""What a check leaves in its nodes' records, what speaks beside its tests, and what is to be done."""

from __future__ import annotations

from dataclasses import replace
from datetime import timedelta
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agent.node_check.view import with_local
from crds import names
from crds.actions import Action
from crds.agent_report import AgentCheck, ProbeEnding
from crds.cordon import MOST_KEPT
from crds.findings import Finding, Verdict
from crds.nodecheck import NodeCheck
from healthcheck.diagnosis import conclude, investigate
from healthcheck.fleet import Node
from healthcheck.local import local_result
from healthcheck.measurements import CheckHistory
from healthcheck.probes import device_state
from healthcheck.probes.kernel_log import XidError
from healthcheck.probes.nvml import DeviceState
from healthcheck.probes.report import ProbeReport, WrongResult
from healthcheck.settings import Settings
from reconcilers.findings.actions import action_for, action_for_error
from reconcilers.findings.faulty import with_all_evidence
from reconcilers.findings.finished import FinishedCheck
from reconcilers.findings.record import (
    MOST_RESULTS,
    read_record,
    recent,
    with_findings,
    write_record,
)
from reconcilers.observed.hardware import own_fault
from tests.reconcilers.build import NOW, node_sets, verdicts_in
from tests.reconcilers.check_stage import NODES as NODE_KIND
from tests.reconcilers.check_stage import Agents, Stage

NODES = ["a", "b", "c", "d", "e", "f"]


def check(*tests: tuple[str, bool], **status: Any) -> NodeCheck:
    """A finished check of six nodes; tests such as ("ab", True) in one round."""
    places = [[NODES.index(name) for name in members] for members, _ in tests]
    failed = [at for at, (_, passed) in enumerate(tests) if not passed]
    left = [each["node"] for each in status.get("withdrawn", ())]
    ended = {
        "phase": "Succeeded",
        "completionTime": NOW,
        "nodes": NODES,
        "rounds": [{"number": 1, "tests": places, "failed": failed}],
        "nodeSets": node_sets(NODES, verdicts_in(status), *left),
    }
    return NodeCheck.model_validate(
        {
            "metadata": {"name": "c", "namespace": "n", "uid": "0123456789", "resourceVersion": "1"},
            "spec": {"nodes": NODES},
            "status": ended | status,
        }
    )


def results_of(check: NodeCheck) -> dict[str, Finding]:
    """What the records of its nodes get."""
    done = FinishedCheck(check)
    findings = ((node, done.finding_on(node)) for node in NODES if node not in done.untested)
    return {node: finding for node, finding in findings if finding is not None}


# --- what a check leaves ----------------------------------------------------------------------------------


def test_record_counts_tests_and_names_partners_of_failures_that_nothing_explains() -> None:
    found = results_of(check(("ab", True), ("ac", False), ("ad", False), ("ef", True)))
    assert (found["a"].passed, found["a"].failed, found["a"].failed_with) == (1, 2, ("c", "d"))
    assert (found["c"].failed_with, found["e"].failed) == (("a",), 0)
    assert (found["a"].source, found["a"].uid, found["a"].time) == ("n/c", "01234567", NOW)


@pytest.mark.parametrize(
    "named",
    [
        {"faultyNodes": ["b"]},
        {"faultyLinks": [{"a": "a", "b": "b", "symptom": "failed"}]},
        {"faultyDomains": [{"level": "rack", "name": "r", "nodes": ["b"]}]},
    ],
)
def test_failure_that_something_explains_speaks_against_nobody(named: dict[str, Any]) -> None:
    found = results_of(check(("ab", False), **named))["a"]
    assert (found.failed, found.failed_with) == (1, ())


def test_node_that_was_not_tested_has_nothing_recorded() -> None:
    found = results_of(
        check(("ab", True), withdrawn=[{"node": "c", "message": "no image"}], reused=["b", "d"])
    )
    assert found.keys() == {"a", "b", "e", "f"}


@pytest.mark.parametrize("away", ["silent", "crashed"])
def test_test_alone_and_test_with_a_node_that_dropped_out_are_no_tests_with_others(away: str) -> None:
    alone_and_away = {"number": 1, "tests": [[0], [1, 2]], "failed": [1], away: [2]}
    found = results_of(check(rounds=[alone_and_away]))
    assert all(result.passed + result.failed == 0 for result in found.values())


# --- the annotation ---------------------------------------------------------------------------------------


def result(number: int) -> Finding:
    """Of one check, which gave what it gave."""
    return Finding(
        node="a",
        source="default/" + "nightly" * (number % 7),
        uid=str(number),
        time=NOW - timedelta(hours=number // 2),
        verdict=list(Verdict)[number % 4],
        passed=number % 12,
        failed_with=tuple(f"{i}" * 60 for i in range(number % 7)),
    )


RESULTS = st.integers(0, 60).map(result)


def node_with(record: list[Finding], name: str = "a") -> dict[str, Any]:
    return {"metadata": {"name": name, "annotations": {names.ANNOTATION_RECORD: write_record(record)}}}


@given(st.lists(RESULTS, max_size=30), st.lists(RESULTS, max_size=30))
def test_record_is_bounded_keeps_the_newest_and_takes_nothing_in_twice(
    known: list[Finding], new: list[Finding]
) -> None:
    record = with_findings(with_findings([], known), new)
    assert len(record) <= MOST_RESULTS and len(write_record(record)) <= MOST_KEPT
    assert with_findings(record, record) == record
    assert read_record(node_with(record)) == record
    assert sorted(record, key=lambda result: (result.time, result.uid)) == record


@pytest.mark.parametrize(
    "text",
    [
        "",
        "[1]",
        '[{"verdict": "Healthy"}]',
        '[{"verdict": "Healthy", "time": "2026-01-01T00:00:00Z", "passed": -83}]',
        '[{"verdict": "Faulty", "time": "0001-01-01T00:00:00+10:00"}]',
        '[{"verdict": "Faulty", "time": "2026-01-01T00:00:00Z"}' + " " * MOST_KEPT + "]",
    ],
)
def test_unreadable_record_is_none(text: str) -> None:
    assert read_record({"metadata": {"annotations": {names.ANNOTATION_RECORD: text}}}) == []


def test_results_of_long_ago_say_nothing() -> None:
    old, new = (
        Finding(node="a", uid=uid, time=NOW - timedelta(days=days), verdict="Faulty", passed=2)
        for uid, days in (("1", 30), ("2", 3))
    )
    assert recent([old, new], NOW) == [new]


# --- conditions of the node's own -------------------------------------------------------------------------


def conditioned(type_: str, status: str, reason: str = "x") -> dict[str, Any]:
    condition = {"type": type_, "status": status, "reason": reason, "message": "7 of 8\nGPUs"}
    return {"metadata": {}, "status": {"conditions": [{"type": "Ready", "status": "True"}, condition]}}


@pytest.mark.parametrize(
    ("type_", "status", "reason", "action", "agent"),
    [
        ("GPUMissing", "True", "GPUMissing", Action.REBOOT, "node-problem-detector"),
        (
            "AcceleratedHardwareReady",
            "False",
            "NvidiaXID79Error",
            Action.REPLACE,
            "the EKS node monitoring agent",
        ),
        ("GpuMemWatch", "True", "GpuMemWatchIsNotHealthy", Action.RESET_GPU, "NVSentinel"),
        ("GpuSomethingNew", "True", "GpuSomethingNewIsNotHealthy", Action.REBOOT, "NVSentinel"),
    ],
)
def test_conditions_of_those_who_look_after_nodes_are_evidence(
    type_: str, status: str, reason: str, action: Action, agent: str
) -> None:
    found = own_fault(conditioned(type_, status, reason))
    assert found is not None and found.action is action
    assert str(found) == f"its condition {type_} is {status} by {agent}: 7 of 8 GPUs"


@pytest.mark.parametrize(
    "node",
    [
        conditioned("GPUMissing", "False"),
        conditioned("MemoryPressure", "True"),
        conditioned("GpuMemWatch", "False", "GpuMemWatchIsHealthy"),
        conditioned("GpuDcgmConnectivityFailure", "True", "GpuDcgmConnectivityFailureIsNotHealthy"),
        conditioned("ElasticNodeCheck", "True", "ElasticNodeCheckIsNotHealthy"),
        conditioned("ElasticUnhealthy", "True", "CheckFailed"),
        {"metadata": {}},
    ],
)
def test_other_conditions_are_none(node: dict[str, Any]) -> None:
    assert own_fault(node) is None


# --- what to do -------------------------------------------------------------------------------------------


def device(**state: Any) -> ProbeReport:
    """What the probe says of it."""
    return device_state.judge((DeviceState(**({"index": 0} | state)),), [])


@pytest.mark.parametrize(
    ("report", "action"),
    [
        (device(uncorrectable_ecc_volatile=2), Action.RESET_GPU),
        (device(row_remap_pending=True), Action.RESET_GPU),
        (device(row_remap_failed=True, row_remap_pending=True), Action.REPLACE),
        (device(unusable="GPU is lost"), Action.REBOOT),
        *(
            (device_state.judge((), [XidError(code, "0000:3b:00", "", 60.0)]), action)
            for code, action in ((48, Action.RESET_GPU), (79, Action.REBOOT), (64, Action.REPLACE))
        ),
        (
            ProbeReport(ProbeEnding.FAILED, str(WrongResult("wrong")), action=WrongResult.action),
            Action.REPLACE,
        ),
        (ProbeReport(ProbeEnding.CRASHED, "ended by SIGKILL", signal="SIGKILL"), Action.REBOOT),
    ],
)
@given(words=st.text(max_size=20))
def test_what_a_probe_finds_tells_what_to_do_in_whatever_words(
    report: ProbeReport, action: Action, words: str
) -> None:
    reworded = replace(report, reason=words, faults=tuple(words for _ in report.faults))
    (outcome,) = with_local(AgentCheck("uid"), [ProbeReport.from_json(reworded.to_json())]).local
    facts = investigate(CheckHistory(local={"a": local_result([outcome])}), [Node("a")], Settings())
    (found,) = conclude(facts, Settings()).nodes
    assert found.verdict is Verdict.FAULTY and action_for(found) is action


@pytest.mark.parametrize(
    ("text", "action"),
    [
        ("CUDA error: uncorrectable ECC error encountered", Action.RESET_GPU),
        ("NVRM: Xid (PCI:0000:3b:00): 79, GPU has fallen off the bus", Action.REBOOT),
        ("Xid 48 and Xid 64", Action.REPLACE),
        ("Xid 13", Action.REBOOT),
        ("CUDA error: unspecified launch failure", Action.REBOOT),
    ],
)
def test_what_cuda_or_the_driver_says_of_an_error_tells_what_to_do(text: str, action: Action) -> None:
    assert action_for_error(text) is action


@pytest.mark.parametrize(
    ("verdict", "cause", "again", "action"),
    [
        ("Healthy", [], False, None),
        ("Inconclusive", ["PairTest"], False, Action.CHECK_AGAIN),
        ("Straggler", ["SlowCompute"], False, Action.LOOK_AT_LOAD),
        ("Straggler", ["SlowNetwork"], False, Action.LOOK_AT_LINK),
        ("Faulty", ["PairTest"], False, Action.LOOK_AT_LINK),
        ("Faulty", ["Intermittent"], False, Action.LOOK_AT_LINK),
        ("Faulty", ["NoAnswer"], False, Action.REBOOT),
        ("Faulty", ["NoAnswer"], True, Action.REPLACE),
    ],
)
def test_verdict_and_cause_tell_what_to_do(
    verdict: str, cause: list[str], again: bool, action: Action | None
) -> None:
    assert action_for(Finding(node="a", verdict=verdict, causes=cause), again) is action


# --- in a check -------------------------------------------------------------------------------------------


def staged(nodes: int, fails: str, record: list[Finding], **status: Any) -> Stage:
    """A check in which one node fails once, with what it has on its Node."""
    names_of = [f"node-{i}" for i in range(nodes)]
    failures = iter([True])
    stage = Stage(
        agents=Agents(passes=lambda round_, members: not (fails in members and next(failures, False)))
    )
    stage.add_nodes(*names_of)
    stage.update(NODE_KIND, fails, node_with(record, fails) | {"status": status})
    stage.add_check(nodes=names_of)
    return stage


async def test_node_that_fails_once_more_is_faulty_by_its_record() -> None:
    record = [
        Finding(
            node="node-5",
            source="n/nightly",
            uid=str(day),
            time=NOW - timedelta(days=day),
            verdict="Healthy",
            passed=3,
            failed_with=(f"other-{day}", f"another-{day}", f"third-{day}"),
        )
        for day in (3, 2, 1)
    ]
    check = await staged(24, "node-5", record).play()
    assert check.status.faulty_nodes == ["node-5"]
    (found,) = (result for result in check.status.node_results if result.node == "node-5")
    assert found.causes == ("Intermittent",) and found.action is Action.LOOK_AT_LINK
    assert "in 4 of its last 4 checks" in found.message


@pytest.mark.parametrize(("named", "verdict"), [(1, "Faulty"), (20, "Inconclusive")])
def test_condition_of_a_node_counts_unless_it_may_be_behind_a_cut(named: int, verdict: str) -> None:
    domain = {"level": "rack", "name": "r", "nodes": [f"n{i}" for i in range(named)]}
    ended = check(faultyDomains=[domain])
    open_ = Finding(node="a", verdict=Verdict.INCONCLUSIVE, causes=["PairTest"])
    nodes = {"a": {"metadata": {"name": "a"}} | conditioned("NetworkingReady", "False")}
    told = with_all_evidence(ended.status, [open_], [Node("a")], nodes, {}, NOW)
    assert [found.verdict for found in told] == [verdict]


@pytest.mark.parametrize(("ready", "verdict"), [("True", "Inconclusive"), ("False", "Faulty")])
def test_node_that_was_lost_and_is_back_at_the_end_was_seen_to_be_gone_only_once(
    ready: str, verdict: str
) -> None:
    lost = Finding(node="a", verdict=Verdict.INCONCLUSIVE, causes=["NoAnswer"], message="NodeLost")
    ended = check(nodeResults=[lost.to_wire()], nodeSets={"NoAnswer": "0"})
    found = lost.model_copy(update={"verdict": Verdict.FAULTY})
    nodes = {"a": {"metadata": {"name": "a"}, "status": {"conditions": [{"type": "Ready", "status": ready}]}}}
    told = with_all_evidence(ended.status, [found], [Node("a")], nodes, {}, NOW)
    assert [result.verdict for result in told] == [verdict]


@pytest.mark.parametrize(
    ("tested", "labels", "cordoned", "verdict"),
    [
        (8, {}, True, "Healthy"),
        (1, {}, True, "Inconclusive"),
        (1, {}, False, "Healthy"),
        (2, {"nvidia.com/gpu.replicas": "4"}, True, "Healthy"),
        (1, {"nvidia.com/gpu.replicas": "4"}, True, "Inconclusive"),
    ],
)
def test_check_that_saw_some_gpus_does_not_clear_a_node_that_may_be_cordoned_for_another(
    tested: int, labels: dict[str, str], cordoned: bool, verdict: str
) -> None:
    taints = [{"key": names.TAINT_UNHEALTHY}] if cordoned else []
    node = {
        "metadata": {"name": "a", "labels": labels},
        "spec": {"taints": taints},
        "status": {"capacity": {"nvidia.com/gpu": "8"}, "allocatable": {"nvidia.com/gpu": "8"}},
    }
    passed = Finding(node="a", verdict=Verdict.HEALTHY)
    (found,) = with_all_evidence(check().status, [passed], [Node("a")], {"a": node}, {"a": tested}, NOW)
    assert found.verdict == verdict
    assert ("of its" in found.message) is (verdict == "Inconclusive")
