"""Which nodes are cordoned: pure decisions on one node, and on a fleet under the limit."""

from __future__ import annotations

import re
from collections.abc import Collection
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from crds import names
from crds.cordon import read_acted, reason_of, write_acted
from crds.findings import Cause, Finding, Verdict
from reconcilers.cordon.policy import ENOUGH_PASSES, NodeCordon, decide_cordon, newest
from reconcilers.observed.options import limit_of
from tests.reconcilers.build import later

LABEL_VALUE = re.compile(r"[A-Za-z0-9]([-A-Za-z0-9_.]{0,61}[A-Za-z0-9])?")


def found(at: float, healthy: bool = False, name: str = "check", **more: Any) -> Finding:
    fields = {"node": "node-6", "verdict": Verdict.HEALTHY if healthy else Verdict.FAULTY}
    return Finding(**(fields | more), source=f"default/{name}", time=later(at))


def heard(node: NodeCordon, said: Finding) -> NodeCordon:
    """The node after another verdict."""
    return replace(node, finding=newest([said] if node.finding is None else [node.finding, said]))


def looked_at(node: NodeCordon, fleet: Collection[NodeCordon], limit: int) -> NodeCordon:
    """As the reconciler decides on it."""
    return decide_cordon(node, lambda: sum(each.taint is not None for each in fleet) < limit)


ACCUSED = NodeCordon("node-6", finding=found(1))
CORDONED = NodeCordon("node-6", acted=found(1), taint="CheckFailed", finding=found(1))
OVERRULED = replace(CORDONED, taint=None)
LIFTED = NodeCordon("node-6", acted=found(2, healthy=True), finding=found(2, healthy=True))
RARE = found(1, causes=[Cause.PAIR_TEST], passed=1)
COMES_AND_GOES = replace(CORDONED, acted=RARE, finding=found(2, healthy=True))


@pytest.mark.parametrize(
    ("node", "wanted"),
    [
        (NodeCordon("node-6"), NodeCordon("node-6")),
        (NodeCordon("node-6", taint="by hand", finding=found(1, healthy=True)), None),
        (ACCUSED, CORDONED),
        (CORDONED, None),
        (heard(CORDONED, found(3)), replace(CORDONED, acted=found(3), finding=found(3))),
        (heard(CORDONED, found(2, healthy=True)), LIFTED),
        (LIFTED, None),
        (heard(LIFTED, found(1)), None),
        (OVERRULED, None),
        (heard(OVERRULED, found(3)), replace(CORDONED, acted=found(3), finding=found(3))),
        (heard(OVERRULED, found(2, healthy=True)), LIFTED),
        (replace(COMES_AND_GOES, passes=ENOUGH_PASSES - 1), None),
        (replace(COMES_AND_GOES, passes=ENOUGH_PASSES), replace(LIFTED, passes=ENOUGH_PASSES)),
    ],
)
def test_a_node_is_as_its_newest_finding_wants_it(node: NodeCordon, wanted: NodeCordon | None) -> None:
    """None: nothing changes."""
    assert decide_cordon(node) == (wanted or node)
    assert decide_cordon(decide_cordon(node)) == decide_cordon(node)


def test_a_node_without_room_stays_in_service_and_a_cordoned_one_out_of_it() -> None:
    assert decide_cordon(ACCUSED, lambda: False) == ACCUSED
    assert decide_cordon(CORDONED, lambda: False) == CORDONED


@pytest.mark.parametrize(
    "text",
    [
        *("", "true", "{}", '{"verdict": "Faulty"}', '{"node": "a", "verdict": "Faulty"}'),
        '{"node": "a", "verdict": "Faulty", "time": "0001-01-01T00:00:00+10:00"}',
        '{"node": "a", "verdict": "Faulty", "time": "9999-12-31T23:59:59Z"}',
        '{"node": "a", "verdict": "Faulty", "time": "2026-01-01T00:00:00Z", "source": "%s"}' % ("x" * 4_096),
    ],
)
def test_the_finding_is_read_as_it_was_written_and_an_unreadable_one_is_none(text: str) -> None:
    def annotated(text: str) -> dict[str, Any]:
        return {"metadata": {"annotations": {names.ANNOTATION_CORDON: text}}}

    assert read_acted(annotated(text)) is None
    assert read_acted(annotated(write_acted(RARE))) == RARE


def test_reasons_are_valid_taint_values() -> None:
    findings = [
        found(1, verdict=verdict, causes=causes)
        for verdict in Verdict
        for causes in ((), [Cause.HARDWARE_ERROR])
    ]
    assert all(LABEL_VALUE.fullmatch(reason_of(finding)) for finding in findings)


@pytest.mark.parametrize(
    ("nodes", "percent", "limit"), [(1, 10, 1), (9, 10, 1), (20, 10, 2), (29, 10, 2), (4, 100, 4)]
)
def test_limit_is_a_share_of_all_nodes_and_at_least_one(nodes: int, percent: int, limit: int) -> None:
    assert limit_of(nodes, percent) == limit


NAMES = "abcdef"
STEPS = st.tuples(st.sampled_from(["accuse", "clear", "remove the taint", "look"]), st.sampled_from(NAMES))


@given(st.lists(STEPS, max_size=40), st.integers(1, 3))
def test_fleet_stays_within_the_limit_and_each_removed_taint_stays_away(
    steps: list[tuple[str, str]], limit: int
) -> None:
    """Whatever happens in whatever order, with one node looked at at a time."""
    fleet = {name: NodeCordon(name) for name in NAMES}
    overruled: set[str] = set()
    for time, (step, name) in enumerate(steps):
        node = fleet[name]
        if step in ("accuse", "clear"):
            fleet[name] = heard(node, found(time, healthy=step == "clear"))
            overruled.discard(name)
        elif step == "remove the taint" and node.cordoned and node.acted == node.finding:
            fleet[name] = replace(node, taint=None)
            overruled.add(name)
        elif step == "look":
            fleet[name] = looked_at(node, fleet.values(), limit)
            assert not (node.cordoned and node.is_accused) or fleet[name].cordoned, "nobody is evicted"
        assert sum(node.cordoned for node in fleet.values()) <= limit
        assert not any(fleet[name].cordoned for name in overruled)
