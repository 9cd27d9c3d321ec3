"""The pure decisions of a NodeCheck: who takes part, who goes first, who is out, and what a step gave."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from crds.actions import Action
from crds.findings import Verdict
from crds.nodecheck import CheckGroup, NodeCheck, NodeCheckSpec, NodeCheckStatus
from crds.rendezvous import Rendezvous
from healthcheck.measurements import (
    COMPARED_IN_PAIRS,
    CheckHistory,
    GroupResult,
    LocalResult,
    Metric,
    RoundResult,
)
from healthcheck.stragglers import ClassFinding
from reconcilers.nodecheck.claims import NodeClaim, Precedence, claim_of, in_the_way
from reconcilers.nodecheck.nodes import CheckedNode, fleet_of, out_of, settings_of
from reconcilers.nodecheck.scope import choose, is_idle, one_each, wanted_workers
from reconcilers.nodecheck.size import to_wire
from reconcilers.nodecheck.status import settled, summary_of, with_classes, with_local_failures
from reconcilers.nodecheck.steps import (
    StepResult,
    ended_gathering,
    ended_step,
    history_of,
    rounded,
    rounds_of,
    settled_nodes,
)
from tests.reconcilers.build import BAD, GOOD, NO_GPU, NOW, outcome, report, worker

UID = "uid-c"


def participant(
    index: int = 0,
    local: list[dict[str, Any]] | None = None,
    pairs: list[dict[str, Any]] | None = None,
    uid: str = UID,
    reused: bool = False,
    accelerators: dict[str, Any] | None = None,
    **status: Any,
) -> CheckedNode:
    """Node n<index>, whose agent has said this much."""
    check = {"uid": uid, "local": local or [], "pairs": pairs or []}
    said = report(index, check=check, accelerators=accelerators).to_wire()
    return CheckedNode(f"n{index}", 1, worker(index, agent=said, **status), reused, UID)


def group(*members: str) -> CheckGroup:
    return CheckGroup(members=list(members), master_address="10.0.0.1", master_port=20_000)


# --- who takes part -----------------------------------------------------------------------------------


NAMES = [f"n{i}" for i in range(8)]


@given(st.sets(st.sampled_from(NAMES)), st.sets(st.sampled_from(NAMES)))
def test_whoever_is_not_fresh_is_tested_with_as_many_fresh_partners(nodes: set[str], fresh: set[str]) -> None:
    candidates = one_each(sorted(nodes))
    scope = choose(candidates, fresh)
    stale, passed = nodes - fresh, nodes & fresh
    assert stale <= {*scope.nodes} and {*scope.reused} == {*scope.nodes} & fresh
    assert {*scope.nodes} | {*scope.left_out} == nodes
    if stale:
        assert len(scope.reused) == min(len(passed), max(len(stale), 3))
    else:
        assert {*scope.reused} == passed
    assert [c for c in candidates if c in scope.participants] == list(scope.participants)


def test_named_workers_alone_and_those_that_train_are_wanted() -> None:
    workers = [worker(i) for i in (2, 0, 1)]
    spec = NodeCheckSpec(job_name="digits", workers=[1, 2, 7])
    assert [w.spec.index for w in wanted_workers(spec, workers)] == [1, 2]


def test_stale_report_is_nobodys() -> None:
    assert not is_idle(worker(agent=report(pod_uid="another").to_wire()), Rendezvous())
    assert not is_idle(worker(), Rendezvous())


# --- who goes first -----------------------------------------------------------------------------------


def check(name: str, age: float = 0, nodes: tuple[str, ...] = ()) -> NodeCheck:
    created = NOW - timedelta(seconds=age)
    metadata = {"name": name, "namespace": "default", "uid": f"uid-{name}", "creationTimestamp": created}
    return NodeCheck.model_validate(
        {"metadata": metadata, "spec": {"nodes": ["n1"]}, "status": {"nodes": list(nodes)}}
    )


@given(st.lists(st.tuples(st.sets(st.sampled_from("abcdef")), st.integers(0, 9), st.booleans()), max_size=8))
def test_a_node_is_contested_by_the_claim_that_goes_first_of_those_that_want_it(
    others: list[tuple[set[str], int, bool]],
) -> None:
    mine = claim_of(check("mine", age=5), Precedence.OTHERS, wanted=frozenset("abcd"))
    claims = [
        claim_of(check(f"c{number}", age), Precedence.OTHERS, wanted=frozenset(nodes), tests=tests)
        for number, (nodes, age, tests) in enumerate(others)
    ]
    first: dict[str, NodeClaim] = {}
    for each in sorted(claims, key=lambda claim: claim.order):
        for node in mine.wanted & each.wanted:
            if each.tests or each.order < mine.order:
                first.setdefault(node, each)
    assert in_the_way(mine, claims) == first


# --- who is out ---------------------------------------------------------------------------------------


def test_exit_of_an_earlier_incarnation_is_no_exit_of_this_one() -> None:
    raised = worker(incarnation=3, lastExit={"incarnation": 2, "exitClass": "NodeLost", "time": NOW})
    out = out_of(CheckedNode("n0", 1, raised, check_uid=UID))
    assert out is not None and not out.lost


def test_agent_that_is_heard_before_its_pod_is_known_is_waited_for() -> None:
    early = participant(0, phase="Pending", podUid=None)
    assert (
        not early.is_ready
        and ended_gathering(NodeCheckStatus(), [early, participant(1)], overdue=False) is None
    )


# --- what a step gave ---------------------------------------------------------------------------------

LOCAL = NodeCheckStatus(round=0)


def test_local_tests_are_over_when_all_but_the_reused_have_answered_this_check() -> None:
    done, reused = participant(0, GOOD), participant(1, reused=True)
    assert ended_step(LOCAL, [done, reused], overdue=False) is not None
    assert ended_step(LOCAL, [done, participant(2)], overdue=False) is None
    assert ended_step(LOCAL, [done, participant(2, GOOD, uid="another")], overdue=False) is None
    ended = ended_step(LOCAL, [done, participant(2)], overdue=True)
    assert ended is not None and not ended.unanswered
    assert ended.withdrawn["n2"].reason == "TooLate"


def test_what_could_not_be_tested_withdraws_a_node_unless_something_failed() -> None:
    ended = ended_step(LOCAL, [participant(0, NO_GPU), participant(1, NO_GPU + BAD)], overdue=False)
    assert ended is not None and ended.withdrawn["n0"].message == "a GPU was asked for, and there is none"


def test_round_is_over_when_every_member_has_answered_and_passed_if_all_say_so() -> None:
    status = NodeCheckStatus(round=2, groups=[group("n0", "n1"), group("n2", "n3")])
    good = [outcome("pair", round=2, figures={"pair_bus_gbps": speed}) for speed in (10.00049, 9.0, 8.0, 8.0)]
    good[3] |= {"ending": "Failed", "reason": "n2 did not come"}
    everybody = [participant(i, GOOD, [said]) for i, said in enumerate(good)]
    assert ended_step(status, [*everybody[:3], participant(3, GOOD)], overdue=False) is None
    ended = ended_step(status, everybody, overdue=False)
    assert ended is not None and ended.round is not None
    first, second = ended.round.groups
    assert first.passed and first.measured == {Metric.PAIR_BUS_GBPS: 9.0}
    assert not second.passed and second.failure == "n3: n2 did not come" and not second.measured


def test_member_that_could_not_test_withdraws_and_says_nothing_of_its_partner() -> None:
    status = NodeCheckStatus(round=1, groups=[group("n0", "n1")])
    unable = outcome("pair", "Unavailable", round=1, reason="torch is missing")
    failed = outcome("pair", "Failed", round=1, reason="n0 did not come")
    ended = ended_step(
        status, [participant(0, GOOD, [unable]), participant(1, GOOD, [failed])], overdue=False
    )
    assert ended is not None and ended.round is not None
    assert ended.withdrawn["n0"].message == "pair: torch is missing" and ended.round.groups[0].silent == (
        "n0",
    )


@pytest.mark.parametrize(
    ("signal", "ending", "crashed"),
    [("SIGSEGV", "Crashed", ("n0",)), ("SIGABRT", "Crashed", ()), ("", "Crashed", ()), ("", "Failed", ())],
)
@given(words=st.text(max_size=20) | st.just("ended by SIGKILL"))
def test_a_probe_that_died_by_a_signal_of_its_own_is_known_by_the_signal_in_whatever_words(
    signal: str, ending: str, crashed: tuple[str, ...], words: str
) -> None:
    """Its partner may quote them, too."""
    status = NodeCheckStatus(round=1, groups=[group("n0", "n1")])
    died = outcome("pair", ending, round=1, reason=words, signal=signal)
    quotes = outcome("pair", "Failed", round=1, reason=words)
    ended = ended_step(status, [participant(0, GOOD, [died]), participant(1, GOOD, [quotes])], overdue=False)
    assert ended is not None and ended.round is not None and ended.round.groups[0].crashed == crashed


def test_local_failure_is_remembered_with_what_helps_when_the_report_is_gone() -> None:
    lost = LocalResult(failure="Xid 64", action=Action.REPLACE)
    status = with_local_failures(NodeCheckStatus(nodes=["n0"], round=1), CheckHistory(local={"n0": lost}))
    history = history_of(status, [CheckedNode("n0", 1, worker(0))])
    assert history.local["n0"] == lost and settled_nodes(status) == {"n0"}


def test_long_messages_are_cut() -> None:
    status = NodeCheckStatus(round=1, groups=[group("n0", "n1")])
    failed = outcome("pair", "Failed", round=1, reason="x" * 512)
    ended = ended_step(status, [participant(i, GOOD, [failed]) for i in (0, 1)], overdue=False)
    assert ended is not None and ended.round is not None and len(ended.round.groups[0].failure) <= 200


# --- what the diagnosis is told -----------------------------------------------------------------------


def test_kind_place_and_past_of_a_node() -> None:
    nodes = [
        participant(0, accelerators={"kind": "nvidia", "count": 8, "model": "NVIDIA H100"}),
        participant(1, reused=True),
    ]
    a, b = fleet_of(nodes, {"n0": {"rack": "r1", "zone": "z"}}, ["rack", "row", "zone"], {})
    assert a.hardware_class == "nvidia NVIDIA H100" and [str(d) for d in a.domains] == ["rack=r1", "zone=z"]
    assert b.vouched and not a.vouched and b.domains == () and b.hardware_class == ""


def test_ratio_alone_makes_slow_where_there_is_no_accelerator() -> None:
    spec = NodeCheckSpec(nodes=["n0"], straggler_ratio=2.0)
    cpus = settings_of(spec, [participant(accelerators={"kind": "cpu", "count": 4})])
    assert (
        cpus.small_fleet_ratio,
        cpus.floor(Metric.GEMM_FP32_TFLOPS),
        cpus.floor(Metric.PAIR_LATENCY_US),
    ) == (2.0, 0.5, 0.75)
    gpus = settings_of(spec, [participant(accelerators={"kind": "nvidia", "count": 4}), participant(1)])
    assert gpus.straggler_ratio == 2.0 and gpus.of_class("nvidia").small_fleet_ratio == 1.2
    assert gpus.of_class("") == cpus


# --- what is said at the end --------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("verdicts", "status", "reason", "message"),
    [
        ({"a": "Healthy", "b": "Healthy"}, "True", "AllHealthy", "all 2 nodes are healthy"),
        ({"a": "Healthy", "b": "Inconclusive"}, "Unknown", "Inconclusive", "of 2 nodes, 1 inconclusive (b)"),
        (
            {"a": "Straggler", "b": "Inconclusive"},
            "False",
            "Stragglers",
            "of 2 nodes, 1 slow (a), 1 inconclusive (b)",
        ),
        ({"a": "Faulty", "b": "Straggler"}, "False", "FaultyNodes", "of 2 nodes, 1 faulty (a), 1 slow (b)"),
        ({"a": "Faulty"}, "False", "FaultyNodes", "node a is faulty"),
    ],
)
def test_summary_tells_the_worst_first(
    verdicts: dict[str, str], status: str, reason: str, message: str
) -> None:
    summary = summary_of({node: Verdict(verdict) for node, verdict in verdicts.items()})
    assert (summary.status, summary.reason, summary.message) == (status, reason, message)


# --- what is kept -------------------------------------------------------------------------------------


@given(st.data())
def test_rounds_are_kept_as_the_diagnosis_takes_them(data: st.DataObject) -> None:
    nodes = data.draw(st.permutations([f"n{i}" for i in range(7)]))
    groups = [tuple(nodes[:3]), tuple(nodes[3:5]), tuple(nodes[5:])]
    figures = st.dictionaries(st.sampled_from(COMPARED_IN_PAIRS), st.floats(1e-3, 1e4).map(rounded))
    outcomes = [
        data.draw(
            st.builds(GroupResult, st.just(members), st.just(True), measured=figures)
            | st.builds(
                GroupResult,
                st.just(members),
                st.just(False),
                failure=st.sampled_from(["", "connection lost"]),
                silent=st.sets(st.sampled_from(members)).map(lambda s: tuple(sorted(s, key=nodes.index))),
            )
        )
        for members in groups
    ]
    told = RoundResult(3, tuple(outcomes))
    status = settled(NodeCheckStatus(nodes=nodes), StepResult({}, {}, told), NOW)
    stored = NodeCheckStatus.model_validate(to_wire(status))
    assert rounds_of(stored) == (told,)


def test_what_is_wrong_with_a_whole_class_is_a_condition() -> None:
    found = ClassFinding("H100", ("a", "b"), "2 of the 40 nodes look like another generation")
    (condition,) = with_classes(NodeCheckStatus(), [found], NOW).conditions
    assert (condition.type, condition.status, condition.reason) == ("NodesAlike", "False", "SpeedsDiffer")
    assert condition.message == "2 of the 40 nodes look like another generation (a, b)"
    assert not with_classes(NodeCheckStatus(), [], NOW).conditions
