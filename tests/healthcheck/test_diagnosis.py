"""Whole checks, played from the first round to the verdicts."""

from __future__ import annotations

from itertools import combinations

import pytest

from healthcheck.diagnosis import Cause, Verdict
from healthcheck.fleet import Domain, Node
from healthcheck.measurements import GroupResult, LocalResult
from healthcheck.settings import Settings
from tests.healthcheck.build import Group, fleet, hard, names, play, scripted

LOCAL_OK = LocalResult()


def test_dlrover_example_six_nodes_of_which_the_sixth_is_broken() -> None:
    played = play(fleet(6), hard({"6"}))
    assert played.groups == [[("1", "2"), ("3", "4"), ("5", "6")], [("5", "1"), ("6", "2")]]
    assert played.faulty == {"6"}
    assert played.named(Verdict.HEALTHY) == names(1, 2, 3, 4, 5)
    assert played.of("6").evidence == (
        "it failed in round 1 with 5 and in round 2 with 2, who do well with others, and never passed "
        "(connection lost)"
    )


@pytest.mark.parametrize("size", range(3, 10))
def test_every_hard_fault_below_half_of_the_nodes_is_found_wherever_it_is(size: int) -> None:
    for count in range((size + 1) // 2):
        for bad in combinations([str(i) for i in range(1, size + 1)], count):
            played = play(fleet(size), hard(bad))
            assert played.faulty == set(bad)
            assert not played.named(Verdict.INCONCLUSIVE)
            assert len(played.rounds) <= 6


def test_two_nodes_that_fail_together_are_inconclusive() -> None:
    played = play(fleet(2), hard({"1"}))
    assert played.named(Verdict.INCONCLUSIVE) == {"1", "2"}
    assert len(played.rounds) == 1


def test_a_vouched_third_node_tells_two_apart() -> None:
    nodes = [Node("1"), Node("2"), Node("reference", vouched=True)]
    assert play(nodes, hard({"2"})).faulty == {"2"}


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
    assert played.of("1").evidence == "its local tests failed: GPU 3: uncorrectable ECC error"


def test_a_node_that_never_answers_is_faulty_and_its_partner_is_not() -> None:
    def probe(round_: int, group: Group) -> GroupResult:
        silent = tuple(name for name in group if name == "2")
        return GroupResult(group, not silent, silent=silent)

    played = play(fleet(4), probe)
    assert played.faulty == {"2"}
    assert played.of("2").causes == (Cause.NO_ANSWER,)
    assert played.named(Verdict.HEALTHY) == names(1, 3, 4)
    assert played.groups[1] == [("1", "3")]


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


@pytest.mark.parametrize("size", [3, 4, 6, 7, 16])
def test_a_bad_link_is_named_and_blames_no_node(size: int) -> None:
    played = play(fleet(size), hard((), links=[("1", "2")]))
    assert [set(found.link) for found in played.verdicts.links] == [{"1", "2"}]
    assert len(played.named(Verdict.HEALTHY)) == size
    assert "while 1 passed in" in played.verdicts.links[0].evidence


def test_one_pass_does_not_clear_a_node_that_failed() -> None:
    """Node 2 fails, passes twice, and fails again with another."""

    def probe(round_: int, group: Group) -> GroupResult:
        return GroupResult(group, not (round_ in (1, 4) and "2" in group))

    played = play(fleet(8), probe)
    assert played.groups[1] == [("1", "3"), ("2", "4")]
    assert played.groups[2] == [("1", "2")], "a failed pair meets again before anybody is blamed"
    assert played.faulty == {"2"}
    assert "who do well with others, and passed in 2 of 4 tests" in played.of("2").evidence


def test_a_single_failure_that_never_returns_is_cleared_after_many_passes() -> None:
    played = play(fleet(8), scripted({1: [("1", "2")]}))
    assert played.named(Verdict.HEALTHY) == names(*range(1, 9))
    assert len(played.rounds) == 1 + Settings().failed.clearing_passes
    assert "a fault would have shown again" in played.of("1").evidence


def racks(size: int, rack_size: int) -> list[Node]:
    return [Node(str(i + 1), domains=(Domain("rack", f"r{i // rack_size}"),)) for i in range(size)]


def test_a_dead_rack_is_reported_as_a_rack() -> None:
    played = play(racks(16, 4), hard(names(5, 6, 7, 8)))
    assert played.faulty == names(5, 6, 7, 8)
    (found,) = played.verdicts.domains
    assert (str(found.domain), found.nodes) == ("rack=r1", ("5", "6", "7", "8"))
    assert found.evidence == "4 of its 4 nodes are faulty, and 0 of the 12 elsewhere"


def test_faults_spread_over_racks_are_not_a_rack() -> None:
    assert play(racks(16, 4), hard(names(1, 6, 11, 16))).verdicts.domains == ()


def test_a_rack_that_lost_its_uplink_is_named_and_its_nodes_are_not() -> None:
    inside = names(4, 5, 6)

    def probe(round_: int, group: Group) -> GroupResult:
        return GroupResult(group, len({name in inside for name in group}) == 1)

    played = play(racks(15, 3), probe)
    assert played.faulty == set() and played.verdicts.links == ()
    assert [str(found.domain) for found in played.verdicts.domains] == ["rack=r1"]
    assert played.named(Verdict.INCONCLUSIVE) <= inside


def test_further_screening_rounds_meet_other_partners_across_racks() -> None:
    played = play(racks(8, 4), hard(()), Settings(screening_rounds=3))
    assert len(played.rounds) == 3
    met = [frozenset(group) for groups in played.groups for group in groups]
    assert len(met) == len(set(met)) == 12
    rack = {node.name: node.domains for node in racks(8, 4)}
    assert all(rack[a] != rack[b] for a, b in played.groups[1])
