from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import datetime, timedelta
from typing import Any

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
    return NodeCheck.model_validate({"metadata": {"name": "c"}, "spec": {"nodes": ["a"]}, "status": status})


def on(node: str, checks: Sequence[NodeCheck]) -> list[FinishedCheck]:
    return [done for done in map(FinishedCheck, checks) if node in done.verdicts]


def fresh_passes(checks: Sequence[NodeCheck], created: Mapping[str, datetime], since: datetime) -> set[str]:
    return {node for node in "ab" if has_fresh_pass(node, on(node, checks), created.get(node), since)}


def newest_verdicts(checks: Sequence[NodeCheck]) -> dict[str, str]:
    found = {node: newest_on(node, on(node, checks)) for node in "ab"}
    return {node: done.verdicts[node] for node, done in found.items() if done is not None}


def test_node_that_passed_since_then_is_fresh_and_the_others_are_not() -> None:
    checks = [check(NOW, a="Healthy", b="Faulty"), check(later(-61), b="Healthy")]
    assert fresh_passes(checks, CREATED, later(-60)) == {"a"}
    assert fresh_passes(checks, CREATED, NOW) == {"a"}
    assert fresh_passes(checks, CREATED, later(1)) == set()


def test_of_two_verdicts_in_the_same_second_the_pass_does_not_count() -> None:
    checks = [check(NOW, a="Healthy"), check(NOW, a="Faulty")]
    assert not fresh_passes(checks, CREATED, LONG_AGO) and not fresh_passes(checks[::-1], CREATED, LONG_AGO)


def test_pass_from_before_the_node_was_added_is_of_another_machine() -> None:
    assert fresh_passes([check(NOW, a="Healthy")], {"a": later(1)}, LONG_AGO) == set()
    assert fresh_passes([check(NOW, a="Healthy")], {}, LONG_AGO) == set()


def test_check_made_after_the_node_was_added_is_of_that_machine_though_our_clock_is_behind() -> None:
    made = check(later(-300), a="Healthy")
    made = made.model_copy(update={"metadata": made.metadata.model_copy(update={"creation_timestamp": NOW})})
    assert fresh_passes([made], {"a": later(-1)}, LONG_AGO) == {"a"}
    assert fresh_passes([made], {"a": later(1)}, LONG_AGO) == set()


def test_pass_that_was_taken_over_from_an_earlier_check_does_not_grow_younger() -> None:
    checks = [check(later(-100), a="Healthy", b="Healthy"), check(NOW, reused="ab", a="Healthy", b="Faulty")]
    assert fresh_passes(checks, CREATED, later(-60)) == set()
    assert fresh_passes(checks, CREATED, later(-100)) == {"a"}


def test_checks_that_did_not_succeed_say_nothing() -> None:
    checks = [check(NOW, phase, a="Healthy") for phase in ("Pending", "Running", "Failed")]
    assert fresh_passes(checks, CREATED, LONG_AGO) == set() and newest_verdicts(checks) == {}


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
