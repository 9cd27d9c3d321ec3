"""Nodes that give no answer, that cannot be tested to the end, and that need no test."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from crds.findings import Cause, Verdict
from healthcheck.fleet import Node
from healthcheck.measurements import CheckHistory, GroupResult, LocalResult, RoundResult
from healthcheck.plan import ProbeRound, next_step
from healthcheck.settings import Settings
from tests.healthcheck.build import fleet, hard, names, play

SETTINGS = Settings()


def test_node_without_an_answer_to_the_local_tests_is_faulty_and_meets_nobody() -> None:
    played = play(fleet(4), hard({"2"}), unanswered={"2": "its agent never reported"})
    assert played.groups == [[("1", "3", "4")]]
    assert played.faulty == {"2"} and played.of("2").causes == (Cause.NO_ANSWER,)
    assert played.of("2").message == ("it gave no answer to the local tests (its agent never reported)")


def test_where_most_give_no_answer_to_the_local_tests_nobody_is_blamed() -> None:
    played = play(fleet(5), hard(()), unanswered={"1": "", "2": "", "3": ""})
    assert played.named(Verdict.INCONCLUSIVE) == names(1, 2, 3)
    assert played.groups == [[("4", "5")]] and played.named(Verdict.HEALTHY) == names(4, 5)


def test_withdrawn_node_is_inconclusive_with_the_reason_and_meets_nobody() -> None:
    played = play(fleet(4), hard({"2"}), withdrawn={"2": "its Pod was evicted"})
    assert played.groups == [[("1", "3", "4")]]
    assert played.of("2").verdict is Verdict.INCONCLUSIVE and played.of("2").causes == (Cause.WITHDRAWN,)
    assert "its Pod was evicted" in played.of("2").message


def test_withdrawn_node_whose_own_tests_failed_is_faulty() -> None:
    local = {"2": LocalResult(failure="gemm: wrong")}
    assert play(fleet(4), hard(()), local=local, withdrawn={"2": "its Pod was evicted"}).faulty == {"2"}


def test_node_that_its_witnesses_accused_before_it_withdrew_is_faulty() -> None:
    played = [[("1", "2"), ("3", "4")], [("4", "1"), ("3", "2")], [("4", "2")], [("4", "1")], [("4", "3")]]
    rounds = tuple(
        RoundResult(number, tuple(GroupResult(group, "4" not in group) for group in groups))
        for number, groups in enumerate(played, start=1)
    )
    history = CheckHistory(rounds=rounds, withdrawn={"4": "its Pod was evicted"})
    step = next_step(history, fleet(4), SETTINGS)
    assert not isinstance(step, ProbeRound) and step.named(Verdict.FAULTY) == ("4",)


def test_node_whose_own_probe_crashed_again_and_again_before_it_withdrew_is_faulty() -> None:
    def probe(round_: int, group: tuple[str, ...]) -> GroupResult:
        crashed = tuple(name for name in group if name == "2")
        return GroupResult(group, not crashed, "ended by SIGSEGV", crashed=crashed)

    rounds = play(fleet(8), probe).rounds
    step = next_step(CheckHistory(rounds=rounds, withdrawn={"2": "its Pod was evicted"}), fleet(8), SETTINGS)
    assert not isinstance(step, ProbeRound) and step.named(Verdict.FAULTY) == ("2",)


def test_withdrawal_in_the_middle_says_nothing_about_the_partners() -> None:
    first = RoundResult(1, (GroupResult(("1", "2"), False, silent=("2",)), GroupResult(("3", "4"), True)))
    history = CheckHistory(rounds=(first,), withdrawn={"2": "its Pod was evicted"})
    step = next_step(history, fleet(4), SETTINGS)
    assert step == ProbeRound(2, (("1", "3", "4"),))


def test_withdrawals_do_not_make_a_round_one_in_which_most_are_silent() -> None:
    groups = (
        GroupResult(("1", "2"), False, silent=("1", "2")),
        GroupResult(("3", "4"), False, silent=("3",)),
        GroupResult(("5", "6"), True),
    )
    history = CheckHistory(rounds=(RoundResult(1, groups),), withdrawn={"1": "evicted", "2": "evicted"})
    rounds = history.rounds
    while isinstance(step := next_step(history, fleet(6), SETTINGS), ProbeRound):
        passed = tuple(
            GroupResult(group, "3" not in group, silent=("3",) if "3" in group else ())
            for group in step.groups
        )
        rounds = (*rounds, RoundResult(step.number, passed))
        history = CheckHistory(rounds=rounds, withdrawn=history.withdrawn)
    assert step.named(Verdict.FAULTY) == ("3",) and step.named(Verdict.INCONCLUSIVE) == ("1", "2")


# --- nodes that passed a fresh check ------------------------------------------------------------------


def vouched(*listed: str) -> list[Node]:
    """Those in capitals are vouched for."""
    return [Node(name.lower(), vouched=name.isupper()) for name in listed]


def test_nodes_to_be_tested_meet_vouched_ones_and_a_reserve_idles() -> None:
    played = play(vouched("A", "b", "C", "D"), hard(()))
    assert played.groups == [[("a", "b")], [("b", "c")]]
    assert played.named(Verdict.HEALTHY) == {"a", "b", "c", "d"}
    assert "earlier check" in played.of("d").message


def test_those_without_a_vouched_partner_meet_each_other_and_a_last_one_makes_a_triple() -> None:
    assert play(vouched("A", "b", "c"), hard(())).groups[0] == [("a", "b", "c")]
    assert play(vouched("A", "b", "c", "d"), hard(())).groups[0] == [("a", "b"), ("c", "d")]


def test_one_new_node_is_found_faulty_by_three_vouched_ones() -> None:
    played = play(vouched("a", "B", "C", "D"), hard({"a"}))
    assert played.faulty == {"a"} and played.named(Verdict.HEALTHY) == {"b", "c", "d"}
    assert len(played.rounds) <= 6


def test_vouched_node_that_broke_since_is_found() -> None:
    assert play(vouched("a", "B", "C", "d", "e"), hard({"b"})).faulty == {"b"}


@given(st.data())
def test_absent_nodes_are_in_no_group_and_blame_nobody_else(data: st.DataObject) -> None:
    nodes = fleet(data.draw(st.integers(2, 9)))
    everyone = st.sampled_from([node.name for node in nodes])
    unanswered = data.draw(st.sets(everyone))
    withdrawn = data.draw(st.sets(everyone)) - unanswered
    absent = {"unanswered": dict.fromkeys(unanswered, ""), "withdrawn": dict.fromkeys(withdrawn, "evicted")}
    played = play(nodes, hard(()), **absent)
    assert not {name for groups in played.groups for group in groups for name in group} & (
        unanswered | withdrawn
    )
    assert played.faulty in (set(), unanswered)
    assert withdrawn <= played.named(Verdict.INCONCLUSIVE)
