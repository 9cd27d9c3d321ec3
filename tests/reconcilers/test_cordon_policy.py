from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from crds.findings import Cause, Finding, Verdict
from reconcilers.cordon.options import ALL_NODES, DEFAULT_POOLS, limit_of, pools_of
from reconcilers.cordon.policy import (
    ENOUGH_PASSES,
    Mark,
    MarkState,
    NodeState,
    decide_cordon,
    full_pool,
    newest,
    read_mark,
    reason_of,
    write_mark,
)
from tests.reconcilers.build import later

LABEL_VALUE = re.compile(r"[A-Za-z0-9]([-A-Za-z0-9_.]{0,61}[A-Za-z0-9])?")


def found(at: float, healthy: bool = False, name: str = "check", **more: Any) -> Finding:
    fields = {"node": "node-6", "verdict": Verdict.HEALTHY if healthy else Verdict.FAULTY}
    return Finding(**(fields | more), source=f"default/{name}", time=later(at))


def faulty(name: str = "node-6", at: float = 1, **more: Any) -> NodeState:
    return NodeState(name, finding=found(at), **more)


def looked_at(node: NodeState, fleet: Iterable[NodeState], limits: Mapping[str, int]) -> NodeState:
    """As the reconciler decides on it."""
    there = [each for each in fleet if each.cordoned]

    def taken(pool: str) -> int:
        return sum(pool == ALL_NODES or pool in each.pools for each in there)

    full = None if node.cordoned else full_pool(node, taken, lambda pool: limits.get(pool, 99))
    return decide_cordon(node, full)


def looks(fleet: list[NodeState], limits: Mapping[str, int]) -> list[NodeState]:
    """One node after the other is looked at."""
    for at, node in enumerate(fleet):
        fleet = [*fleet[:at], looked_at(node, fleet, limits), *fleet[at + 1 :]]
    return fleet


def heard(node: NodeState, said: Finding) -> NodeState:
    """The node after another verdict."""
    return replace(node, finding=newest([said] if node.finding is None else [node.finding, said]))


# --- one node ---------------------------------------------------------------------------------------


def test_fault_that_comes_and_goes_is_forgiven_after_enough_passes_in_a_row() -> None:
    accused = decide_cordon(NodeState("node-6", finding=found(1, causes=[Cause.PAIR_TEST], passed=1)))
    passed = heard(accused, found(2, healthy=True))
    assert decide_cordon(replace(passed, passes=ENOUGH_PASSES - 1)) == replace(
        passed, passes=ENOUGH_PASSES - 1
    )
    back = decide_cordon(replace(passed, passes=ENOUGH_PASSES))
    assert back.mark is not None and back.mark.state is MarkState.LIFTED and not back.unschedulable


def test_faulty_node_is_tainted_unschedulable_and_marked_with_both() -> None:
    after = decide_cordon(faulty())
    assert (after.taint, after.unschedulable) == ("CheckFailed", True)
    assert after.mark == Mark(state=MarkState.CORDONED, finding=found(1), unschedulable=True)


def test_report_from_before_the_last_pass_does_not_count_when_the_check_is_deleted() -> None:
    cordoned = decide_cordon(faulty(at=1))
    lifted = decide_cordon(heard(cordoned, found(2, healthy=True)))
    assert lifted.mark is not None
    with_check_deleted = replace(lifted, finding=newest([found(1), lifted.mark.finding]))
    assert decide_cordon(with_check_deleted) == lifted


@pytest.mark.parametrize("undone", [{"unschedulable": False}, {"taint": None}])
def test_uncordon_by_hand_is_respected_until_a_newer_found(undone: dict[str, Any]) -> None:
    cordoned = decide_cordon(faulty(at=1))
    overruled = decide_cordon(replace(cordoned, **undone))
    assert (overruled.taint, overruled.unschedulable) == (None, False)
    assert overruled.mark is not None and overruled.mark.state is MarkState.OVERRULED
    assert decide_cordon(overruled) == overruled
    assert decide_cordon(heard(overruled, found(2))).cordoned


def test_hand_cordon_lifted_by_hand_leaves_our_taint() -> None:
    cordoned = decide_cordon(faulty(unschedulable=True))
    after = decide_cordon(replace(cordoned, unschedulable=False))
    assert (after.taint, after.unschedulable, after.cordoned) == ("CheckFailed", False, True)


def test_another_check_that_confirms_the_fault_is_what_a_person_then_overrules() -> None:
    confirmed = decide_cordon(heard(decide_cordon(faulty(at=1)), found(3)))
    overruled = decide_cordon(replace(confirmed, unschedulable=False))
    assert overruled.mark is not None and overruled.mark.finding == found(3)
    assert not overruled.cordoned


def test_nobody_says_anything_of_a_node_nobody_judged() -> None:
    assert decide_cordon(NodeState("node-1", unschedulable=True)).mark is None


# --- the mark ---------------------------------------------------------------------------------------


def marked(text: str) -> dict[str, Any]:
    return {"metadata": {"annotations": {"elastic.iml.github.io/cordon": text}}}


def test_mark_is_read_as_it_was_written() -> None:
    mark = decide_cordon(faulty()).mark
    assert mark is not None and read_mark(marked(write_mark(mark))) == mark


@pytest.mark.parametrize("text", ["", "true", "{}", '{"state": "Cordoned"}'])
def test_unreadable_mark_is_none(text: str) -> None:
    assert read_mark(marked(text)) is None


def test_reasons_are_valid_taint_values() -> None:
    findings = [
        found(1, verdict=verdict, causes=causes)
        for verdict in Verdict
        for causes in ((), [Cause.HARDWARE_ERROR])
    ]
    assert all(LABEL_VALUE.fullmatch(reason_of(finding)) for finding in findings)


# --- the limit --------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("nodes", "percent", "limit"), [(1, 10, 1), (9, 10, 1), (20, 10, 2), (29, 10, 2), (4, 100, 4)]
)
def test_limit_is_a_share_of_all_nodes_and_at_least_one(nodes: int, percent: int, limit: int) -> None:
    assert limit_of(nodes, percent) == limit


@pytest.mark.parametrize(
    ("rules", "pools"),
    [
        (DEFAULT_POOLS, {"nvidia.com/gpu.product=H100", "karpenter.sh/nodepool=big"}),
        (("team=a",), {"team=a"}),
        (("team=a,karpenter.sh/nodepool=big", "team=b", "rack"), {"team=a,karpenter.sh/nodepool=big"}),
        ((), set()),
    ],
)
def test_pools_are_values_of_labels_or_what_a_selector_matches(
    rules: tuple[str, ...], pools: set[str]
) -> None:
    labels = {"nvidia.com/gpu.product": "H100", "karpenter.sh/nodepool": "big", "team": "a"}
    assert pools_of(labels, rules) == pools


def test_overruled_node_takes_no_room_and_asks_for_none() -> None:
    overruled = decide_cordon(replace(decide_cordon(faulty("a")), taint=None))
    after = looks([overruled, faulty("b", at=9)], {ALL_NODES: 1})
    assert [node.cordoned for node in after] == [False, True]


def test_a_node_without_room_is_held_for_the_pool_that_is_full_and_lets_others_pass() -> None:
    h100 = frozenset({"gpu=H100"})
    fleet = [faulty("a", pools=h100), faulty("b", pools=h100), faulty("c")]
    fleet = looks(fleet, {ALL_NODES: 2, "gpu=H100": 1})
    assert [node.cordoned for node in fleet] == [True, False, True]
    held = fleet[1].mark
    assert held is not None and (held.state, held.full) == (MarkState.HELD, "gpu=H100")
    lifted = decide_cordon(heard(fleet[0], found(9, healthy=True)))
    assert looks([lifted, *fleet[1:]], {ALL_NODES: 2, "gpu=H100": 1})[1].cordoned


# --- properties -------------------------------------------------------------------------------------

FINDINGS = st.builds(found, st.integers(0, 5), st.booleans(), st.sampled_from("xy"))
MARKS = st.builds(
    Mark,
    state=st.sampled_from(MarkState),
    finding=FINDINGS,
    unschedulable=st.booleans(),
)


@st.composite
def nodes(draw: st.DrawFn, marked: bool = True) -> NodeState:
    mark = draw(st.none() | MARKS) if marked else None
    said = draw(st.lists(FINDINGS, max_size=3)) + ([mark.finding] if mark else [])
    return NodeState(
        name=draw(st.text("abcd", min_size=1, max_size=2)),
        mark=mark,
        taint=draw(st.sampled_from([None, "CheckFailed", "HardwareError"])),
        unschedulable=draw(st.booleans()),
        finding=newest(said),
    )


@given(nodes(), st.booleans())
def test_deciding_twice_changes_nothing(node: NodeState, admitted: bool) -> None:
    once = decide_cordon(node, None if admitted else ALL_NODES)
    assert decide_cordon(once, None if admitted else ALL_NODES) == once


@given(nodes(marked=False), st.booleans())
def test_node_without_our_mark_is_never_touched_other_than_to_cordon_it(
    node: NodeState, admitted: bool
) -> None:
    after = decide_cordon(node, None if admitted else ALL_NODES)
    if after.cordoned:
        assert node.finding is not None and not node.finding.healthy and admitted
        assert after.taint == reason_of(node.finding) and after.unschedulable
    else:
        assert (after.taint, after.unschedulable) == (node.taint, node.unschedulable)


@given(nodes(marked=False), st.integers(0, 5))
def test_newer_healthy_verdict_lifts_ours_and_leaves_the_rest(node: NodeState, at: int) -> None:
    accused = replace(node, finding=found(at))
    cordoned = decide_cordon(accused)
    after = decide_cordon(heard(cordoned, found(at + 1, healthy=True)))
    assert not after.cordoned
    assert (after.taint, after.unschedulable) == (None, node.unschedulable)


@given(st.lists(nodes(), max_size=8, unique_by=lambda node: node.name), st.integers(1, 4))
def test_admission_never_exceeds_the_limit_and_evicts_nobody(fleet: list[NodeState], limit: int) -> None:
    cordoned = {node.name for node in fleet if node.cordoned}
    kept = {n.name for n in fleet if n.cordoned and decide_cordon(n).cordoned}
    found = {node.name for node in looks(fleet, {ALL_NODES: limit}) if node.cordoned}
    assert kept <= found
    assert len(found) <= max(limit, len(cordoned))


@given(st.lists(nodes(), max_size=8, unique_by=lambda node: node.name), st.data())
def test_no_pool_gets_more_than_its_limit(fleet: list[NodeState], data: st.DataObject) -> None:
    pools = st.frozensets(st.sampled_from(["p", "q", "r"]))
    fleet = [replace(node, pools=data.draw(pools)) for node in fleet]
    limits = {pool: data.draw(st.integers(1, 3)) for pool in "pqr"}
    after = looks(fleet, limits | {ALL_NODES: data.draw(st.integers(1, 4))})
    for pool, limit in limits.items():
        before, now = (sum(node.cordoned and pool in node.pools for node in each) for each in (fleet, after))
        assert now <= max(limit, before)


NAMES = "abcdef"
STEPS = st.tuples(
    st.sampled_from(["accuse", "clear", "cordon by hand", "uncordon by hand", "look"]), st.sampled_from(NAMES)
)


@given(st.lists(STEPS, max_size=40), st.integers(1, 3))
def test_fleet_stays_within_the_limit_and_hand_made_cordons_stay(
    steps: list[tuple[str, str]], limit: int
) -> None:
    """Whatever happens in whatever order, with one node looked at at a time.

    But for an uncordon and a cordon by hand between two looks: then the node is as it was before both.
    """
    fleet = {name: NodeState(name) for name in NAMES}
    by_hand: set[str] = set()
    for time, (step, name) in enumerate(steps):
        node = fleet[name]
        if step in ("accuse", "clear"):
            fleet[name] = heard(node, found(time, healthy=step == "clear"))
        elif step == "cordon by hand" and not node.unschedulable:
            by_hand.add(name)
            seen = looked_at(node, fleet.values(), {ALL_NODES: limit}) if node.cordoned else node
            fleet[name] = replace(seen, unschedulable=True)
        elif step == "uncordon by hand":
            by_hand.discard(name)
            fleet[name] = replace(node, unschedulable=False)
        elif step == "look":
            fleet[name] = looked_at(node, fleet.values(), {ALL_NODES: limit})
        assert sum(node.cordoned for node in fleet.values()) <= limit
        assert all(fleet[name].unschedulable for name in by_hand)
