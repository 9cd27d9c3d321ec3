from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import datetime, timedelta
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from crds.nodecheck import NodeCheck
from reconcilers.findings.finished import FinishedCheck, has_fresh_pass, newest_on
from tests.reconcilers.build import NOW, later, node_sets

LONG_AGO = NOW - timedelta(days=30)
CREATED = {"a": LONG_AGO, "b": LONG_AGO}


def check(
    ended: datetime,
    phase: str = "Succeeded",
    reused: Sequence[str] = (),
    began: datetime | None = None,
    created: datetime | None = None,
    **verdicts: str,
) -> NodeCheck:
    status: dict[str, Any] = {
        "phase": phase,
        "reused": list(reused),
        "startTime": began,
        "completionTime": ended,
        "nodes": list(verdicts),
        "nodeSets": node_sets(list(verdicts), verdicts),
    }
    metadata = {"name": "c", "creationTimestamp": created}
    return NodeCheck.model_validate({"metadata": metadata, "spec": {"nodes": ["a"]}, "status": status})


def on(node: str, checks: Sequence[NodeCheck]) -> list[FinishedCheck]:
    return [done for done in map(FinishedCheck, checks) if node in done.verdicts]


def fresh_passes(checks: Sequence[NodeCheck], created: Mapping[str, datetime], since: datetime) -> set[str]:
    return {node for node in "ab" if has_fresh_pass(node, on(node, checks), created.get(node), since)}


def newest_verdicts(checks: Sequence[NodeCheck]) -> dict[str, str]:
    found = {node: newest_on(node, on(node, checks)) for node in "ab"}
    return {node: done.verdicts[node] for node, done in found.items() if done is not None}


PASS, FAULTY = check(NOW, a="Healthy"), check(NOW, a="Faulty")
TAKEN_OVER = check(NOW, reused="ab", a="Healthy", b="Faulty")
BEHIND = check(later(-300), created=NOW, a="Healthy")


@pytest.mark.parametrize(
    ("checks", "created", "since", "fresh"),
    [
        ([check(NOW, a="Healthy", b="Faulty"), check(later(-61), b="Healthy")], CREATED, -60, {"a"}),
        ([PASS], CREATED, 0, {"a"}),
        ([PASS], CREATED, 1, set()),
        ([PASS, FAULTY], CREATED, -60, set()),
        ([FAULTY, PASS], CREATED, -60, set()),
        ([PASS], {"a": later(1)}, -60, set()),
        ([PASS], {}, -60, set()),
        ([BEHIND], {"a": later(-1)}, -600, {"a"}),
        ([BEHIND], {"a": later(1)}, -600, set()),
        ([check(later(-100), a="Healthy", b="Healthy"), TAKEN_OVER], CREATED, -60, set()),
        ([check(later(-100), a="Healthy", b="Healthy"), TAKEN_OVER], CREATED, -100, {"a"}),
        *(([check(NOW, phase, a="Healthy")], CREATED, -60, set()) for phase in ("Running", "Failed")),
    ],
)
def test_fresh_is_a_pass_of_this_machine_since_then_that_nothing_newer_takes_back(
    checks: Sequence[NodeCheck], created: Mapping[str, datetime], since: float, fresh: set[str]
) -> None:
    """A check made after the node was added is of that machine, though our clock is behind; what was taken over
    from an earlier check does not grow younger."""
    assert fresh_passes(checks, created, later(since)) == fresh


VERDICTS = st.sampled_from(["Healthy", "Faulty", "Straggler", "Inconclusive"])
CHECKS = st.lists(
    st.tuples(st.integers(-100, 0), st.dictionaries(st.sampled_from("ab"), VERDICTS)), max_size=6
)


@given(CHECKS, st.integers(-100, 0), st.randoms())
def test_order_of_checks_is_of_no_account(
    drawn: list[tuple[int, Mapping[str, str]]], since: int, random: Any
) -> None:
    checks = [check(later(age), **verdicts) for age, verdicts in drawn]
    shuffled = random.sample(checks, len(checks))
    fresh = fresh_passes(checks, CREATED, later(since))
    assert fresh == fresh_passes(shuffled, CREATED, later(since))
    assert fresh <= {node for node, verdict in newest_verdicts(checks).items() if verdict == "Healthy"}
