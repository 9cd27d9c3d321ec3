"""Whole checks, played from the first round to the verdicts."""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import replace
from itertools import combinations, pairwise

import pytest

from crds.findings import Cause, Verdict
from healthcheck.diagnosis import conclude, investigate
from healthcheck.domains import clustered
from healthcheck.fleet import Domain, Node
from healthcheck.measurements import CheckHistory, GroupResult, LocalResult, RoundResult
from healthcheck.settings import Settings
from healthcheck.trials import Symptom
from tests.healthcheck.build import Group, cut, fleet, hard, names, play, scripted

LOCAL_OK = LocalResult()


def test_dlrover_example_six_nodes_of_which_the_sixth_is_broken() -> None:
    played = play(fleet(6), hard({"6"}))
    assert played.groups[:2] == [[("1", "6"), ("2", "5"), ("3", "4")], [("1", "2"), ("3", "5"), ("4", "6")]]
    assert len(played.groups) == 5
    assert played.faulty == {"6"}
    assert played.named(Verdict.HEALTHY) == names(1, 2, 3, 4, 5)
    assert played.of("6").message == (
        "it failed in round 1 with 1, in round 2 with 4, in round 3 with 2, in round 4 with 3 and in round 5 "
        "with 5, who do well with others, and never passed: odds 700,000:1 for a fault of its own "
        "(connection lost)"
    )


@pytest.mark.parametrize("size", [4, 33])
def test_a_node_whose_first_four_tests_fail_by_chance_is_tried_once_more(size: int) -> None:
    """At one failure in twenty tests it befalls one healthy node in 160,000: too many, over weeks of checks."""

    def probe(round_: int, group: Group) -> GroupResult:
        return GroupResult(group, "2" not in group or round_ > 4)

    assert play(fleet(size), probe).named(Verdict.HEALTHY) == {node.name for node in fleet(size)}


def test_two_nodes_that_fail_together_are_inconclusive() -> None:
    played = play(fleet(2), hard({"1"}))
    assert played.named(Verdict.INCONCLUSIVE) == {"1", "2"}
    assert len(played.rounds) == 2, "one more try"


def test_an_old_vouch_is_no_witness() -> None:
    aged = [Node(name, vouched=True, vouch_age_seconds=1e6) for name in ("a", "b", "c")]
    nodes = [Node("1"), *aged]
    rounds = tuple(
        RoundResult(number, (GroupResult(("1", partner), False),))
        for number, partner in enumerate(("a", "b", "c", "a", "b"), start=1)
    )
    young = [Node("1"), *(replace(node, vouch_age_seconds=0.0) for node in aged)]
    for listed, guilty in ((nodes, set()), (young, {"1"})):
        evidence = investigate(CheckHistory(rounds=rounds), listed, Settings()).evidence[Symptom.FAILED]
        assert set(evidence.attribution.guilty) == guilty


def test_one_node_alone_is_judged_by_its_local_tests() -> None:
    nothing = hard(())
    assert play(fleet(1), nothing).named(Verdict.INCONCLUSIVE) == {"1"}
    assert play(fleet(1), nothing, local={"1": LOCAL_OK}).named(Verdict.HEALTHY) == {"1"}
    assert play([], nothing).verdicts.nodes == ()


def test_local_failures_decide_at_once_and_take_no_part_in_pairs() -> None:
    local = {"1": LocalResult(device_faults=("GPU 3: uncorrectable ECC error",)), "2": LOCAL_OK}
    played = play(fleet(2), hard({"1"}), local=local)
    assert played.rounds == ()
    assert played.faulty == {"1"} and played.named(Verdict.HEALTHY) == {"2"}
    assert played.of("1").causes == (Cause.LOCAL_TEST,)
    assert played.of("1").message == "its local tests failed: GPU 3: uncorrectable ECC error"


def test_a_node_that_answers_in_no_round_is_faulty_and_its_partners_are_not() -> None:
    def probe(round_: int, group: Group) -> GroupResult:
        silent = tuple(name for name in group if name == "2")
        return GroupResult(group, not silent, silent=silent)

    played = play(fleet(8), probe)
    assert played.faulty == {"2"}
    assert played.of("2").causes == (Cause.NO_ANSWER,)
    assert played.of("2").message == "it gave no answer in round 1, 2 and 3"
    assert played.named(Verdict.HEALTHY) == names(1, 3, 4, 5, 6, 7, 8)


def test_one_lost_answer_says_nothing() -> None:
    def probe(round_: int, group: Group) -> GroupResult:
        silent = ("2",) if round_ == 1 and "2" in group else ()
        return GroupResult(group, not silent, silent=silent)

    played = play(fleet(8), probe)
    assert len(played.named(Verdict.HEALTHY)) == 8 and len(played.rounds) == 2


def test_the_word_of_a_nodes_own_agent_needs_no_witness() -> None:
    def probe(round_: int, group: Group) -> GroupResult:
        crashed = tuple(name for name in group if name == "2")
        return GroupResult(group, not crashed, "ended by SIGKILL", crashed=crashed)

    played = play(fleet(2), probe)
    assert played.faulty == {"2"} and played.of("2").causes == (Cause.CRASHED,)
    assert "ended by a signal in round 1, 2 and 3" in played.of("2").message


def test_silence_of_most_nodes_condemns_nobody_and_ends_soon() -> None:
    def probe(round_: int, group: Group) -> GroupResult:
        return GroupResult(group, False, silent=group)

    played = play(fleet(6), probe)
    assert len(played.verdicts.named(Verdict.INCONCLUSIVE)) == 6
    assert len(played.rounds) == 2


@pytest.mark.parametrize(("size", "rounds"), [(8, Settings().most_rounds_without_a_pass), (400, 1)])
def test_when_nothing_ever_passes_the_check_ends_without_blame(size: int, rounds: int) -> None:
    played = play(fleet(size), hard(names(*range(1, size + 1))))
    assert len(played.named(Verdict.INCONCLUSIVE)) == size
    assert len(played.rounds) == rounds


@pytest.mark.parametrize("size", [3, 16])
def test_a_bad_link_is_named_and_blames_no_node(size: int) -> None:
    played = play(fleet(size), hard((), links=[("1", "2")]))
    assert [set(found.link) for found in played.verdicts.links] == [{"1", "2"}]
    assert len(played.named(Verdict.HEALTHY)) == size
    assert "while 1 passed in" in played.verdicts.links[0].message


def test_one_pass_does_not_clear_a_node_that_failed() -> None:
    """Node 2 fails, passes, and fails again and again."""

    def probe(round_: int, group: Group) -> GroupResult:
        return GroupResult(group, not (round_ != 2 and "2" in group))

    played = play(fleet(8), probe)
    assert played.faulty == {"2"}
    assert "who do well with others, and passed in 1 of" in played.of("2").message


def test_a_single_failure_that_never_returns_is_cleared_after_many_passes() -> None:
    played = play(fleet(8), scripted({1: [("1", "8")]}))
    assert played.named(Verdict.HEALTHY) == names(*range(1, 9))
    assert 6 <= len(played.rounds) <= 12
    assert "a fault would have shown again" in played.of("1").message


def racks(size: int, rack_size: int) -> list[Node]:
    return [Node(str(i + 1), domains=(Domain("rack", f"r{i // rack_size}"),)) for i in range(size)]


def test_a_dead_rack_is_reported_as_a_rack() -> None:
    played = play(racks(16, 4), hard(names(5, 6, 7, 8)))
    assert played.faulty == names(5, 6, 7, 8)
    (found,) = played.verdicts.domains
    assert (str(found), tuple(found.nodes)) == ("rack=r1", ("5", "6", "7", "8"))
    assert found.message == "4 of its 4 nodes are faulty, and 0 of the 12 elsewhere"


def test_the_longest_label_names_a_rack() -> None:
    label = f"{'a' * 253}/{'b' * 63}"
    nodes = [Node(str(i), domains=(Domain(label, str(i // 4)),)) for i in range(16)]
    assert clustered(nodes, {"4", "5", "6", "7"}, 0.05)[0].level == label


def test_further_screening_rounds_meet_other_partners_across_racks() -> None:
    played = play(racks(8, 4), hard(()), Settings(screening_rounds=3))
    assert len(played.rounds) == 3
    met = [frozenset(group) for groups in played.groups for group in groups]
    assert len(met) == len(set(met)) == 12
    rack = {node.name: node.domains for node in racks(8, 4)}
    assert all(rack[a] != rack[b] for a, b in played.groups[0])


@pytest.mark.parametrize("size", [7, 12])
def test_every_two_nodes_meet_once_in_as_many_screening_rounds_as_nodes(size: int) -> None:
    played = play(fleet(size), hard(()), Settings(screening_rounds=size))
    met = {frozenset(pair) for groups in played.groups for group in groups for pair in combinations(group, 2)}
    assert len(met) == size * (size - 1) // 2


def test_the_next_check_meets_other_partners() -> None:
    first, second = (play(fleet(12), hard(()), Settings(rotation=2 * check)) for check in range(2))
    pairs = [{frozenset(g) for groups in played.groups for g in groups} for played in (first, second)]
    assert pairs[0].isdisjoint(pairs[1])


@pytest.mark.parametrize("labelled", [True, False])
def test_a_half_that_is_cut_off_is_one_verdict_and_no_node_of_it_is_blamed(labelled: bool) -> None:
    inside = names(1, 4, 5, 8, 9, 12)
    nodes = [
        Node(str(i), domains=(Domain("zone", str(str(i) in inside)),) if labelled else ())
        for i in range(1, 13)
    ]
    played = play(nodes, cut(inside))
    assert played.faulty == set() and played.verdicts.links == ()
    (found,) = played.verdicts.domains
    assert set(found.nodes) in (inside, names(*range(1, 13)) - inside)
    assert found.level == ("zone" if labelled else "partition")


def test_two_parts_of_one_label_are_one_verdict_though_tests_between_them_failed() -> None:
    inside = [str(i) for i in range(1, 9)]
    nodes = [Node(str(i), domains=(Domain("zone", str(str(i) in inside)),)) for i in range(1, 41)]
    joined = [("1", "2"), ("2", "3"), ("3", "4"), ("5", "6"), ("6", "7"), ("7", "8")]
    joined += [(str(n), str(n + 1)) for n in range(9, 40)]
    across = [(name, str(int(name) + shift)) for name in inside for shift in (10, 20)]
    between = [("1", "5"), ("2", "6"), ("3", "7"), ("4", "8")]
    tests = [GroupResult(pair, True) for pair in joined]
    tests += [GroupResult(pair, False) for pair in across + between]
    rounds = tuple(RoundResult(number, (test,)) for number, test in enumerate(tests, start=1))
    (found,) = conclude(investigate(CheckHistory({}, rounds), nodes, Settings()), Settings()).domains
    assert (str(found), tuple(found.nodes)) == ("zone=True", tuple(inside))
    assert "all 16 tests of 8 of them with 16 nodes elsewhere failed" in found.message


@pytest.mark.parametrize(
    ("inside", "failures", "proven"), [(2, 4, False), (2, 7, True), (10, 7, False), (10, 14, True)]
)
def test_the_more_parts_there_might_be_the_more_failures_tell_that_one_is_cut_off(
    inside: int, failures: int, proven: bool
) -> None:
    """Where one test in twenty fails, some chain of ten nodes is soon found that failed with all others."""
    part = [str(n) for n in range(1, inside + 1)]
    passes = list(pairwise(str(n) for n in range(inside + 1, 101))) * 3
    accidents = [(str(n), str(n + 2)) for n in range(30, 60, 2)]
    around = [(part[n % inside], str(50 + n)) for n in range(failures)]
    tests = [GroupResult(pair, True) for pair in [*pairwise(part), *passes]]
    tests += [GroupResult(pair, False) for pair in accidents + around]
    rounds = tuple(RoundResult(number, (test,)) for number, test in enumerate(tests, start=1))
    found = investigate(CheckHistory({}, rounds), fleet(100), Settings()).evidence[Symptom.FAILED].attribution
    assert [cut.nodes for cut in found.cuts.proven] == ([tuple(part)] if proven else [])
    assert found.guilty == {}


@pytest.mark.parametrize(
    ("neighbours_passed", "neighbours_failed", "proven"), [(0, 6, True), (6, 6, False), (24, 0, True)]
)
def test_a_part_of_a_rack_whose_other_nodes_get_out_now_and_then_is_not_cut_off(
    neighbours_passed: int, neighbours_failed: int, proven: bool
) -> None:
    """Nodes 1 and 2 failed with all six that they met outside of their rack; 3 to 8 are in it, too."""
    around = [("1", "20"), ("2", "21"), ("1", "22"), ("2", "23"), ("1", "24"), ("2", "25"), ("1", "26")]
    neighbours = [(str(3 + n % 6), str(30 + n)) for n in range(neighbours_passed + neighbours_failed)]
    passes = [*pairwise(str(n) for n in range(3, 9)), *pairwise(str(n) for n in range(9, 100))]
    tests = [GroupResult(pair, True) for pair in [("1", "2"), *passes * 2, *neighbours[neighbours_failed:]]]
    tests += [GroupResult(pair, False) for pair in around + neighbours[:neighbours_failed]]
    rounds = tuple(RoundResult(number, (test,)) for number, test in enumerate(tests, start=1))
    found = (
        investigate(CheckHistory({}, rounds), racks(100, 8), Settings()).evidence[Symptom.FAILED].attribution
    )
    assert any({"1", "2"} <= set(cut.nodes) for cut in found.cuts.proven) == proven


@pytest.mark.parametrize("seed", range(2))
def test_nodes_that_are_broken_beside_a_labelled_rack_that_is_cut_off_are_found(seed: int) -> None:
    """What they fail with nodes of that rack is the rack's, and says nothing of them."""
    order = random.Random(seed).sample(fleet(100), 100)
    inside, bad = {node.name for node in order[:10]}, {node.name for node in order[15::20]}
    rack = {node.name: Domain("rack", str(place // 10)) for place, node in enumerate(order)}
    nodes = [Node(node.name, domains=(rack[node.name],)) for node in fleet(100)]
    played = play(nodes, cut(inside, bad), Settings(rotation=seed))
    assert played.faulty == bad
    assert [set(found.nodes) for found in played.verdicts.domains] == [inside]


@pytest.mark.parametrize("seed", range(2))
def test_a_half_that_no_label_tells_is_found_in_six_rounds(seed: int) -> None:
    nodes = fleet(200)
    half = set(random.Random(seed).sample([node.name for node in nodes], 100))
    played = play(nodes, cut(half), Settings(rotation=seed))
    assert played.verdicts.domains and played.faulty == set()
    assert len(played.rounds) <= 6


@pytest.mark.parametrize("labelled", [True, False])
def test_of_a_large_fleet_no_node_is_blamed_that_is_cut_off_beside_a_broken_one(labelled: bool) -> None:
    nodes = racks(4_000, 3) if labelled else fleet(4_000)
    inside = names(400, 401, 402) if labelled else names(17, 1_200, 3_999)
    bad = set() if labelled else {"2500"}
    played = play(nodes, cut(inside, bad))
    assert played.faulty == bad
    (found,) = played.verdicts.domains
    assert set(found.nodes) == inside


def test_a_rack_whose_way_out_fails_now_and_then_is_no_fault_of_one_of_its_nodes() -> None:
    """Node 1 passes in its rack and fails with ten others: it is accused where its neighbours reach those."""
    failures = [("1", str(other)) for other in range(6, 16)]
    well = [(neighbour, str(other)) for neighbour in ("2", "3") for other in range(20, 32)]
    beside = [("2", "17"), ("3", "18")]
    passes = [(str(n), str(n + 1)) for n in range(1, 40)]

    def accused(*failed: tuple[str, str], passed: Sequence[tuple[str, str]] = ()) -> set[str]:
        tests = [GroupResult(pair, False) for pair in failed]
        tests += [GroupResult(pair, True) for pair in (*passes * 3, *passed)]
        rounds = tuple(RoundResult(number, (test,)) for number, test in enumerate(tests, start=1))
        found = investigate(CheckHistory({}, rounds), racks(40, 4), Settings())
        return set(found.evidence[Symptom.FAILED].attribution.guilty)

    assert accused(*failures, passed=well) == {"1"}
    assert accused(*failures) == set()
    assert accused(*failures, *beside, passed=well) == set()
