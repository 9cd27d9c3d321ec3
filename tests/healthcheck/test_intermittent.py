from __future__ import annotations

import random
from collections.abc import Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st

from crds.findings import Finding, Verdict
from healthcheck.fleet import Domain, Node
from healthcheck.intermittent import intermittent

WEEK = 7


def finding(passed: int, failed_with: Sequence[str] = (), verdict: Verdict = Verdict.HEALTHY) -> Finding:
    """What one check found of a node."""
    return Finding(node="a", verdict=verdict, passed=passed, failed_with=tuple(failed_with))


def fleet(size: int, rack_size: int = 0) -> list[Node]:
    """Nodes called a0, a1, …; in racks, if a size is given."""
    return [
        Node(f"a{i}", domains=(Domain("rack", str(i // rack_size)),) if rack_size else ())
        for i in range(size)
    ]


def record(*checks: tuple[int, Sequence[str]]) -> list[Finding]:
    return [finding(passed, failed_with) for passed, failed_with in checks]


def clean(nodes: Sequence[Node], checks: int = WEEK) -> dict[str, list[Finding]]:
    return {node.name: [finding(2)] * checks for node in nodes}


def weeks_of(
    nodes: Sequence[Node], bad: float, background: float, rng: random.Random, tests: int = 4
) -> dict[str, list[Finding]]:
    """Each node makes so many tests a check, with partners by chance; the first one fails a share `bad` more."""
    results: dict[str, list[Finding]] = {node.name: [] for node in nodes}
    for _ in range(WEEK):
        passed = dict.fromkeys(results, 0)
        failed: dict[str, list[str]] = {name: [] for name in results}
        for _ in range(tests):
            order = rng.sample(list(results), len(results))
            for a, b in zip(order[::2], order[1::2], strict=False):
                if rng.random() < background or ("a0" in (a, b) and rng.random() < bad):
                    failed[a].append(b)
                    failed[b].append(a)
                else:
                    passed[a] += 1
                    passed[b] += 1
        for name, theirs in results.items():
            theirs.append(finding(passed[name], tuple(dict.fromkeys(failed[name]))))
    return results


# --- who is found -----------------------------------------------------------------------------------------


def test_failures_that_no_check_could_tell_from_accidents_add_up() -> None:
    nodes = fleet(20)
    records = clean(nodes)
    records["a0"] = record(
        (2, ["a1", "a2"]), (2, []), (2, []), (2, ["a3"]), (2, []), (2, ["a1", "a4", "a5", "a6"])
    )
    found = intermittent(records, nodes)
    assert list(found) == ["a0"]
    assert found["a0"] == (
        "it failed 7 of 19 tests, with 6 different nodes, in 3 of its last 6 checks, while others fail 0%"
    )


@pytest.mark.parametrize(
    "history",
    [
        record((3, ["a1", "a2"]), (3, ["a3", "a4", "a5"]), (2, [])),
        [finding(3, ("a1", "a2", "a3"), Verdict.FAULTY), *record((3, ["a4", "a5"]), (3, ["a6"]))],
        record(*[(2, [])] * 6, (1, ["a1", "a2", "a3", "a4", "a5"])),
    ],
    ids=["the last check was clean", "what was before a verdict is settled", "one bad hour is no fault"],
)
def test_nobody_is_blamed_for_a_history_that_is_over(history: list[Finding]) -> None:
    nodes = fleet(20)
    assert not intermittent(clean(nodes) | {"a0": history}, nodes)


def test_bad_link_is_neither_nodes_fault_however_often_it_fails() -> None:
    nodes = fleet(20)
    records = clean(nodes)
    records["a0"] = record(*[(1, ["a1"])] * WEEK)
    records["a1"] = record(*[(1, ["a0"])] * WEEK)
    assert not intermittent(records, nodes)


def test_nodes_of_a_rack_that_fails_now_and_then_are_not_blamed_one_by_one() -> None:
    nodes = fleet(32, rack_size=8)
    records = clean(nodes)
    for i in range(8):
        records[f"a{i}"] = record(
            (2, [f"a{8 + i}", f"a{16 + i}"]),
            (2, [f"a{24 + i}", f"a{15 + i}"]),
            (2, [f"a{9 + i}", f"a{17 + i}"]),
        )
    assert not intermittent(records, nodes)
    alone = clean(nodes) | {"a0": records["a0"]}
    assert list(intermittent(alone, nodes)) == ["a0"]


def test_where_many_stand_out_at_once_nobody_is_blamed() -> None:
    nodes = fleet(30)
    records = clean(nodes, checks=30)
    for i in range(5):
        partners = [f"a{10 + 3 * i + j}" for j in range(3)]
        records[f"a{i}"] = record(*[(1, partners)] * 3)
    assert not intermittent(records, nodes)


# --- properties -------------------------------------------------------------------------------------------


@given(st.integers(0, 10_000), st.sampled_from([8, 33, 100]), st.sampled_from([0.0, 0.01, 0.05, 0.2]))
def test_no_healthy_node_is_blamed_for_accidents(seed: int, size: int, background: float) -> None:
    nodes = fleet(size)
    assert not intermittent(weeks_of(nodes, 0.0, background, random.Random(seed)), nodes)


@given(st.integers(0, 10_000), st.sampled_from([33, 100]))
def test_half_of_all_tests_failing_is_found_in_a_week_and_nobody_else_is(seed: int, size: int) -> None:
    nodes = fleet(size)
    records = weeks_of(nodes, 0.5, 0.01, random.Random(seed))
    found = list(intermittent(records, nodes))
    assert set(found) <= {"a0"}
    failed = sum(len(result.failed_with) for result in records["a0"])
    if failed >= 10 and records["a0"][-1].failed_with:  # in one week of 100 luck leaves it with 7 of 28
        assert found == ["a0"]


@given(st.integers(0, 10_000))
def test_the_order_of_nodes_is_of_no_account(seed: int) -> None:
    rng, nodes = random.Random(seed), fleet(33)
    records = weeks_of(nodes, 0.4, 0.01, rng)
    shuffled = rng.sample(nodes, len(nodes))
    assert intermittent(records, nodes) == intermittent({n.name: records[n.name] for n in shuffled}, shuffled)
