"""How large a NodeCheck may become: what it found takes little, however much of it there is."""

from __future__ import annotations

from datetime import UTC, datetime
from unittest.mock import patch

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agent.facts.world import Member
from agent.node_check.view import WorkerCheck
from crds.actions import Action
from crds.findings import FaultyDomain, FaultyLink, Finding, Verdict
from crds.nodecheck import MAX_NODES, MOST_NAMED, CheckRound, NodeCheck, NodeCheckStatus
from dlr.job.check_outcome import rounds_of, verdicts_of
from healthcheck.measurements import CheckHistory, LocalResult
from reconcilers.findings.finished import FinishedCheck, accused_nodes
from reconcilers.nodecheck.nodes import Out
from reconcilers.nodecheck.size import FOUND_BYTES, to_wire
from reconcilers.nodecheck.status import MAX_PLACES, concluded, settled, summary_of, with_local_failures
from reconcilers.nodecheck.steps import StepResult, history_of, settled_nodes
from tests.crds.go_json import go_bytes

NOW = datetime(2026, 11, 23, tzinfo=UTC)
TEST_BYTES = 30
"""Bound of a test in a finished round: two places, two figures, and that it failed."""
TEXT = "out of order " * 100


def name(index: int) -> str:
    """Of 38 characters."""
    return f"ip-10-{index // 250:03}-{index % 250:03}.eu-west-1.compute.internal"


def largest(count: int, rounds: int, text: str = TEXT) -> NodeCheckStatus:
    """All nodes faulty, silent in each test, withdrawn; as many links and racks as are told.

    Args:
        text: of agents and of kubelets.
    """
    nodes = [name(i) for i in range(count)]
    results = [
        Finding(
            node=node,
            verdict="Faulty",
            causes=["LocalTest"],
            message=text[:1024],
            action="Replace",
            figures={f"gemm_bf16_tflops_{k}": 123.4 for k in range(6)},
        )
        for node in nodes
    ]
    tests = [[at, at + 1] for at in range(0, count - 1, 2)]
    failed, figures = list(range(len(tests))), [123.4] * len(tests)
    silent = list(range(2 * len(tests)))
    done = CheckRound(
        number=1, tests=tests, failed=failed, silent=silent, bus_gbps=figures, latency_us=figures
    )
    links = [
        FaultyLink(a=nodes[i], b=nodes[-1], symptom="failed", message=TEXT[:300]) for i in range(MAX_PLACES)
    ]
    domains = [
        FaultyDomain(level="rack", name=f"r{i}", nodes=nodes[:20], message=TEXT[:300])
        for i in range(MAX_PLACES)
    ]
    status = NodeCheckStatus(
        nodes=nodes,
        workers=list(range(count)),
        incarnations=[1] * count,
        rounds=[done.model_copy(update={"number": number}) for number in range(1, rounds + 1)],
        faulty_links=links,
        faulty_domains=domains,
    )
    out = dict.fromkeys(nodes, Out(text[:400], reason="ErrImagePull"))
    status = settled(status, StepResult(out, {}), NOW)
    summary = summary_of(dict.fromkeys(nodes, Verdict.FAULTY), results)
    return concluded(status, results, summary, NOW)


@pytest.mark.parametrize(
    ("count", "text"), [(1_000, TEXT), (1_000, "<" * 1_024), (1_000, "😀" * 1_024), (MAX_NODES, TEXT)]
)
def test_what_a_check_found_has_a_bound_whatever_the_number_of_nodes(count: int, text: str) -> None:
    rounds = 2
    wire = to_wire(largest(count, rounds, text))
    taking_part = go_bytes({key: wire[key] for key in ("nodes", "workers", "incarnations")})
    tests = go_bytes(wire["rounds"])
    all_of_it = go_bytes(wire)
    print(f"{count} nodes: {all_of_it} bytes, of which {taking_part} names and {tests} of {rounds} rounds")
    assert all_of_it - taking_part - tests < FOUND_BYTES
    assert tests < rounds * (count // 2) * TEST_BYTES + 5_000
    assert all_of_it < 1.1 * 2**20


def test_nodes_beyond_those_that_a_list_names_keep_their_verdict() -> None:
    check = {"metadata": {"name": "c"}, "spec": {"nodeSelector": {}}, "status": to_wire(largest(1_000, 1))}
    stored = check["status"]
    assert len(stored["faultyNodes"]) == len(stored["nodeResults"]) == len(stored["withdrawn"]) == MOST_NAMED
    assert stored["counts"] == {"Faulty": 1_000, "Straggler": 0, "Inconclusive": 0, "Withdrawn": 1_000}
    done = FinishedCheck(NodeCheck.model_validate(check))
    assert len(done.withdrawn) == len(accused_nodes(check)) == 1_000
    for verdicts in (verdicts_of(stored), done.verdicts):
        assert len(verdicts) == 1_000 and {*verdicts.values()} == {"Faulty"}
    (round_,) = rounds_of(stored)
    assert not any(group["passed"] for group in round_["groups"])


@given(st.lists(st.sampled_from(["withdrawn", "unanswered", "failed", "there"]), min_size=9, max_size=9))
def test_nodes_that_dropped_out_stay_out_though_no_list_names_them_and_no_pod_is_left(
    kinds: list[str],
) -> None:
    nodes = [f"n{place}" for place in range(len(kinds))]
    of = {kind: [node for node, each in zip(nodes, kinds, strict=True) if each == kind] for kind in kinds}
    lost = dict.fromkeys(of.get("unanswered", ()), "its node is gone")
    out = dict.fromkeys(of.get("withdrawn", ()), Out("evicted"))
    local = {node: LocalResult(failure="a product is wrong") for node in of.get("failed", ())}
    with patch("reconcilers.nodecheck.status.MOST_NAMED", 1):
        status = settled(NodeCheckStatus(nodes=nodes), StepResult(out, lost), NOW)
        status = with_local_failures(status, CheckHistory(local=local))
    stored = to_wire(status)
    read = NodeCheckStatus.model_validate(stored)
    assert settled_nodes(read) == {*nodes}.difference(of.get("there", ()))
    history = history_of(read, [])
    assert (history.unanswered.keys(), history.withdrawn.keys()) == (lost.keys(), out.keys())
    assert history.local.keys() == local.keys()
    assert not any(result.passed for result in history.local.values())
    workers = {"workers": list(range(len(nodes))), "incarnations": [1] * len(nodes), "phase": "Running"}
    seen = {"metadata": {"uid": "u"}, "status": stored | workers | {"round": 0}}
    asked = {node for place, node in enumerate(nodes) if WorkerCheck.parse(seen, Member(place, 1)).duty}
    assert asked == {*nodes} - out.keys()


def test_of_nodes_that_dropped_out_beyond_the_list_those_with_an_action_stay() -> None:
    broken = {f"n{place}": LocalResult(failure="wrong") for place in range(3)}
    reset = LocalResult(failure="a GPU hangs", action=Action.RESET_GPU)
    with patch("reconcilers.nodecheck.status.MOST_NAMED", 2):
        status = settled(
            NodeCheckStatus(nodes=[*broken, "n3"]), StepResult({}, {"n0": "its node is gone"}), NOW
        )
        status = with_local_failures(status, CheckHistory(local={"n1": broken["n1"], "n2": broken["n2"]}))
        status = with_local_failures(status, CheckHistory(local={"n3": reset}))
    assert [(each.node, each.action) for each in status.node_results] == [
        ("n3", Action.RESET_GPU),
        ("n0", None),
    ]
    assert history_of(status, []).local["n3"] == reset


@pytest.mark.parametrize("text", ["0-99", "7,3", "zAAAA"])
def test_ranges_that_are_none_of_the_nodes_are_an_error_and_no_verdict(text: str) -> None:
    stored = {"nodes": ["n0", "n1"], "nodeSets": {"Faulty": text}}
    with pytest.raises(ValueError, match=r"place|indices|set of"):
        NodeCheckStatus.model_validate(stored)
