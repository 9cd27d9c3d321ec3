"""What a NodeCheck asks of a worker: never twice, never of another, never what is past."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agent.facts.world import Member
from agent.node_check.view import LocalTests, PairTest, WorkerCheck, next_duty, with_local, with_pair
from crds.agent_report import AgentCheck, PairOutcome, ProbeEnding, ProbeOutcome
from crds.nodecheck import CheckGroup, NodeCheckPhase, NodeCheckStatus
from healthcheck.probes.report import ProbeReport

UID = "the-check"
GEMM = ProbeOutcome(probe="gemm", ending=ProbeEnding.PASSED)
NINTH = PairOutcome(probe="pair", ending=ProbeEnding.PASSED, round=9)
PASSED = ProbeReport(ProbeEnding.PASSED, probe="pair", seconds=1.0)


def check(status: NodeCheckStatus | dict[str, Any], **spec: Any) -> dict[str, Any]:
    if isinstance(status, NodeCheckStatus):
        status = status.model_dump(mode="json", by_alias=True, exclude_none=True)
    return {"metadata": {"uid": UID}, "spec": spec, "status": status}


@st.composite
def statuses(draw: st.DrawFn) -> NodeCheckStatus:
    """Some nodes, and some of them in groups."""
    size = draw(st.integers(1, 8))
    nodes = [f"node-{number}" for number in range(size)]
    shuffled = draw(st.permutations(nodes))
    group_sizes = draw(st.lists(st.integers(2, 3), max_size=4))
    groups, first = [], 0
    for group_size in group_sizes:
        members = shuffled[first : first + group_size]
        if len(members) < 2:
            break
        groups.append(CheckGroup(members=members, master_address="10.0.0.1", master_port=1234))
        first += group_size
    return NodeCheckStatus(
        phase=draw(st.sampled_from(NodeCheckPhase)),
        nodes=nodes,
        workers=draw(st.permutations(range(size))),
        incarnations=draw(st.lists(st.integers(1, 3), min_size=size, max_size=size)),
        reused=draw(st.lists(st.sampled_from(nodes), unique=True)),
        round=draw(st.integers(0, 5)),
        groups=groups,
    )


members = st.builds(Member, st.integers(0, 8), st.integers(1, 3))


@given(statuses(), members)
def test_only_who_speaks_for_a_node_of_a_running_check_is_asked(status: NodeCheckStatus, me: Member) -> None:
    duty = next_duty(WorkerCheck.parse(check(status), me), None)
    if duty is None:
        return
    assert status.phase is NodeCheckPhase.RUNNING
    position = status.workers.index(me.index)
    assert status.incarnations[position] == me.incarnation
    node = status.nodes[position]
    if isinstance(duty, LocalTests):
        assert status.round == 0
        assert node not in status.reused
    else:
        assert duty.round == status.round > 0
        assert duty.members[duty.rank] == node
        assert list(duty.members) in [group.members for group in status.groups]


@given(statuses())
def test_every_node_that_is_to_be_tested_is_asked_exactly_one_thing(status: NodeCheckStatus) -> None:
    status = status.model_copy(update={"phase": NodeCheckPhase.RUNNING})
    asked = {
        node: next_duty(WorkerCheck.parse(check(status), Member(index, incarnation)), None)
        for node, index, incarnation in zip(status.nodes, status.workers, status.incarnations, strict=True)
    }
    if status.round == 0:
        assert {node for node, duty in asked.items() if duty} == set(status.nodes) - set(status.reused)
    else:
        paired = [node for group in status.groups for node in group.members]
        assert sorted(node for node, duty in asked.items() if duty) == sorted(paired)


@given(st.lists(statuses(), max_size=12), st.booleans())
def test_no_duty_is_done_twice_and_none_of_a_round_that_is_past(
    seen: list[NodeCheckStatus], knows_another_check: bool
) -> None:
    """Whatever the watch shows, in whatever order: an API server that was restored may go back."""
    me = Member(0, 1)
    told = AgentCheck("another", (GEMM,), (NINTH,)) if knows_another_check else None
    done: list[int] = []
    for status in seen:
        duty = next_duty(WorkerCheck.parse(check(status), me), told)
        if duty is None:
            continue
        told = told if told is not None and told.uid == UID else AgentCheck(UID)
        if isinstance(duty, LocalTests):
            done.append(0)
            told = with_local(told, [PASSED])
        else:
            done.append(duty.round)
            told = with_pair(told, duty.round, PASSED)
    assert done == sorted(set(done))


def test_what_does_not_concern_a_worker_is_no_change_to_it() -> None:
    groups = [CheckGroup(members=["a", "b"], master_address="10.0.0.1", master_port=1)]
    status = NodeCheckStatus(
        phase=NodeCheckPhase.RUNNING,
        nodes=["a", "b", "c"],
        workers=[0, 1, 2],
        incarnations=[1, 1, 1],
        round=1,
        groups=groups,
    )
    before = WorkerCheck.parse(check(status), Member(2, 1))
    other = status.model_copy(update={"round": 2, "groups": [], "faulty_nodes": ["a"]})
    assert WorkerCheck.parse(check(other), Member(2, 1)) == before
    assert WorkerCheck.parse(check(status), Member(1, 1)).duty == PairTest(
        UID, 1, ("a", "b"), 1, "10.0.0.1", 1
    )


@pytest.mark.parametrize("phase", [None, *NodeCheckPhase])
def test_a_check_is_over_when_it_has_finished_or_is_gone(phase: NodeCheckPhase | None) -> None:
    view = WorkerCheck.parse(check(NodeCheckStatus(phase=phase)), Member(0, 1))
    assert view.over == (phase is not None and phase.finished)
    assert WorkerCheck().over


def test_what_is_no_node_check_is_an_error() -> None:
    torn = {"phase": "Running", "round": 1, "nodes": ["a"], "workers": [0], "incarnations": []}
    with pytest.raises(ValueError):
        WorkerCheck.parse(check(torn), Member(0, 1))
