"""How large a NodeCheck may become: what it found takes little, however much of it there is."""

from __future__ import annotations

from datetime import UTC, datetime
from unittest.mock import patch

import pytest
from hypothesis import given
from hypothesis import strategies as st

from crds.findings import FaultyDomain, FaultyLink, Finding, Verdict
from crds.further_nodes import has_further, whole
from crds.nodecheck import MAX_NODES, CheckRound, FailedTest, NodeCheckStatus, Withdrawal
from dlr.job.check_outcome import rounds_of, verdicts_of
from reconcilers.nodecheck.size import FOUND_BYTES, to_wire
from reconcilers.nodecheck.status import MAX_PLACES, concluded, summary_of
from tests.crds.go_json import go_bytes

NOW = datetime(2026, 11, 23, tzinfo=UTC)
TEST_BYTES = 30
"""Bound of a test in a finished round: two places, two figures, and that it failed."""
TEXT = "out of order " * 100


def name(index: int) -> str:
    """Of 38 characters."""
    return f"ip-10-{index // 250:03}-{index % 250:03}.eu-west-1.compute.internal"


@st.composite
def statuses(draw: st.DrawFn) -> NodeCheckStatus:
    nodes = [f"n{i}" for i in range(20)]
    some = st.lists(st.sampled_from(nodes), unique=True)
    text = st.sampled_from(["", "why"])
    left = [Withdrawal(node=node, message=draw(text)) for node in draw(some)]
    results = [
        Finding(node=node, verdict=verdict, causes=[cause], message=draw(text))
        for node in draw(some)
        for verdict, cause in [
            draw(
                st.sampled_from(
                    [("Faulty", "LocalTest"), ("Inconclusive", "NoAnswer"), ("Faulty", "PairTest")]
                )
            )
        ]
    ]
    tests = [[2 * at, 2 * at + 1] for at in range(10)]
    failed = [
        FailedTest(
            test=at,
            message=draw(text),
            silent=sorted(draw(st.sets(st.sampled_from(tests[at])))),
            crashed=sorted(draw(st.sets(st.sampled_from(tests[at])))),
        )
        for at in sorted(draw(st.sets(st.integers(0, 9))))
    ]
    return NodeCheckStatus(
        nodes=nodes,
        faulty_nodes=draw(some),
        stragglers=draw(some),
        inconclusive=draw(some),
        withdrawn=left,
        node_results=results,
        rounds=[CheckRound(number=1, tests=tests, failed=failed)],
    )


@given(statuses(), st.integers(0, 12))
def test_what_is_stored_as_ranges_is_read_as_the_same_lists(status: NodeCheckStatus, most: int) -> None:
    with patch("crds.further_nodes.MOST_NAMED", most):
        wire = to_wire(status)
    read = NodeCheckStatus.model_validate(wire)
    assert not read.further_nodes and not any(done.further_tests for done in read.rounds)
    for field in ("faulty_nodes", "stragglers", "inconclusive"):
        assert sorted(getattr(read, field)) == sorted(getattr(status, field))
    for field in ("withdrawn", "node_results"):
        assert sorted(map(str, getattr(read, field))) == sorted(map(str, getattr(status, field)))
    assert read.rounds == status.rounds
    with patch("crds.further_nodes.MOST_NAMED", most):
        assert to_wire(read) == wire, "what is read and written again does not change"


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
    failed = [FailedTest(test=at, silent=members) for at, members in enumerate(tests)]
    figures = [123.4] * len(tests)
    done = CheckRound(number=1, tests=tests, failed=failed, bus_gbps=figures, latency_us=figures)
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
        withdrawn=[Withdrawal(node=node, message=text[:400], reason="ErrImagePull") for node in nodes],
        faulty_links=links,
        faulty_domains=domains,
    )
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
    assert all_of_it < 1.5 * 2**20


def test_nobody_is_lost_to_programs_that_read_the_stored_check() -> None:
    stored = {"metadata": {"name": "c"}, "status": to_wire(largest(1_000, 1))}
    assert has_further(stored["status"]) and len(stored["status"]["faultyNodes"]) == 250
    status = whole(stored)["status"]
    verdicts = verdicts_of(status)
    assert len(verdicts) == 1_000 and set(verdicts.values()) == {"Faulty"}
    (round_,) = rounds_of(status)
    assert not any(group["passed"] for group in round_["groups"])


@pytest.mark.parametrize("text", ["0-99", "7,3", "zAAAA"])
def test_ranges_that_are_none_of_the_nodes_are_an_error_and_no_verdict(text: str) -> None:
    stored = {"nodes": ["n0", "n1"], "furtherNodes": {"faultyNodes": text}}
    with pytest.raises(ValueError, match=r"place|indices|set of"):
        NodeCheckStatus.model_validate(stored)
