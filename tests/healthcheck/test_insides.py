"""A switch of an NVLink domain: its nodes fail with each other alone."""

from __future__ import annotations

import random
from collections.abc import Collection

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from crds.actions import Action
from crds.findings import FaultyDomain
from crds.names import NVLINK_LABELS
from healthcheck.fleet import Domain, Node
from healthcheck.measurements import GroupResult
from healthcheck.settings import Settings
from tests.healthcheck.build import Group, Played, Probe, hard, names, play


def racks(size: int, length: int, label: str = NVLINK_LABELS[0]) -> list[Node]:
    return [Node(str(i + 1), domains=(Domain(label, f"r{i // length}"),)) for i in range(size)]


def broken(inside: Collection[str]) -> Probe:
    """The switch between these nodes carries nothing; they reach all others."""

    def probe(round_: int, group: Group) -> GroupResult:
        fails = len(group) > 1 and set(group) <= {*inside}
        return GroupResult(group, not fails, "connection lost" if fails else "")

    return probe


def switches(played: Played) -> list[FaultyDomain]:
    return [found for found in played.verdicts.domains if "switch" in found.message]


def flaky(chance: random.Random) -> Probe:
    return lambda _, group: GroupResult(group, chance.random() > 0.1)


@pytest.mark.parametrize(("label", "screening"), [*zip(NVLINK_LABELS, (1, 2, 4, 1), strict=True)])
def test_a_broken_switch_is_found_within_two_more_rounds(label: str, screening: int) -> None:
    played = play(racks(16, 4, label), broken(names(9, 10, 11, 12)), Settings(screening_rounds=screening))
    (found,) = played.verdicts.domains
    assert (str(found), {*found.nodes}) == (f"{label}=r2", names(9, 10, 11, 12))
    assert played.faulty == names(9, 10, 11, 12) and len(played.rounds) == screening + 2
    finding = played.of("9")
    assert finding.action is Action.LOOK_AT_DOMAIN and "look at the domain's switch" in finding.message
    assert not played.verdicts.links


def test_a_domain_of_eighteen_nodes_is_one_finding() -> None:
    played = play(racks(72, 18), broken(names(*range(19, 37))))
    (found,) = played.verdicts.domains
    assert len(found.nodes) == 18 and played.faulty == names(*range(19, 37)), "and no neighbour"


def test_a_broken_link_within_a_domain_is_the_link() -> None:
    played = play(racks(16, 4), hard((), [names(9, 10)]))
    assert [{link.a, link.b} for link in played.verdicts.links] == [names(9, 10)]
    assert not played.faulty and not played.verdicts.domains


def test_other_labels_and_a_fleet_of_one_domain_are_tested_as_before() -> None:
    for nodes in (racks(16, 4, "rack"), racks(16, 16), racks(16, 1)):
        assert len(play(nodes, hard(())).rounds) == 2
    for length, more in ((4, 2), (3, 3), (2, 1)):
        assert len(play(racks(16, length), hard(())).rounds) == 2 + more


@pytest.mark.parametrize(("size", "length"), [(4, 2), (8, 2), (16, 2), (9, 3), (8, 4)])
def test_invariant_a_lost_switch_is_named_whoever_met_first_and_however_small_its_domain(
    size: int, length: int
) -> None:
    """Partners rotate from check to check, so two nodes of a domain meet in the screening of some alone."""
    inside = names(*range(length + 1, 2 * length + 1))
    for seed in range(200):
        played = play(
            racks(size, length), broken(inside), Settings(rotation=random.Random(seed).getrandbits(32))
        )
        (found,) = played.verdicts.domains
        assert {*found.nodes} == inside == played.faulty, seed
        assert not played.verdicts.links
        assert all(played.of(name).action is Action.LOOK_AT_DOMAIN for name in inside)


def test_of_a_domain_of_two_a_node_that_fails_elsewhere_too_is_to_blame_itself_and_both_are_two_nodes() -> (
    None
):
    for bad in (names(3), names(3, 4)):
        played = play(racks(16, 2), hard(bad))
        assert played.faulty == bad and not switches(played)
        assert all(played.of(name).action is not Action.LOOK_AT_DOMAIN for name in bad)


def test_two_nodes_that_passed_with_each_other_once_have_no_lost_switch() -> None:
    """A switch that carries nothing never lets them pass."""
    probe, meetings = broken(names(3, 4)), list[int]()

    def passes_once(round_: int, group: Group) -> GroupResult:
        if set(group) != names(3, 4):
            return probe(round_, group)
        meetings.append(round_)
        return GroupResult(group, len(meetings) == 2)

    played = play(racks(16, 2), passes_once)
    assert len(meetings) >= 2 and not switches(played) and not played.faulty


SMALL = st.sampled_from([2, 3, 4])


@given(st.frozensets(st.integers(1, 16), max_size=3), SMALL)
@settings(deadline=None)
def test_invariant_broken_nodes_are_no_switch(bad: frozenset[int], length: int) -> None:
    played = play(racks(16, length), hard(names(*bad)))
    assert not switches(played)
    assert played.faulty <= names(*bad)


@pytest.mark.parametrize("length", [2, 3, 4])
def test_invariant_tests_that_fail_now_and_then_are_no_switch(length: int) -> None:
    for seed in range(60):
        assert not switches(play(racks(16, length), flaky(random.Random(seed)))), seed
