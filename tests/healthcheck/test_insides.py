"""A switch of an NVLink domain: its nodes fail with each other alone."""

from __future__ import annotations

import random
from collections.abc import Collection

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from crds.actions import Action
from crds.names import NVLINK_LABELS
from healthcheck.fleet import Domain, Node
from healthcheck.measurements import GroupResult
from healthcheck.settings import Settings
from tests.healthcheck.build import Group, Probe, hard, names, play


def racks(size: int, length: int, label: str = NVLINK_LABELS[0]) -> list[Node]:
    return [Node(str(i + 1), domains=(Domain(label, f"r{i // length}"),)) for i in range(size)]


def broken(inside: Collection[str]) -> Probe:
    """The switch between these nodes carries nothing; they reach all others."""

    def probe(round_: int, group: Group) -> GroupResult:
        fails = len(group) > 1 and set(group) <= {*inside}
        return GroupResult(group, not fails, "connection lost" if fails else "")

    return probe


def flaky(chance: random.Random) -> Probe:
    return lambda _, group: GroupResult(group, chance.random() > 0.1)


@pytest.mark.parametrize("label", NVLINK_LABELS)
@pytest.mark.parametrize("screening", [1, 2, 4])
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
    for nodes in (racks(16, 4, "rack"), racks(16, 16), racks(16, 3)):
        assert len(play(nodes, hard(())).rounds) == 2
    assert len(play(racks(16, 4), hard(())).rounds) == 4


@given(st.frozensets(st.integers(1, 16), max_size=3))
@settings(deadline=None)
def test_broken_nodes_are_no_switch(bad: frozenset[int]) -> None:
    played = play(racks(16, 4), hard(names(*bad)))
    assert not [found for found in played.verdicts.domains if "switch" in found.message]
    assert played.faulty <= names(*bad)


def test_tests_that_fail_now_and_then_are_no_switch() -> None:
    for seed in range(15):
        played = play(racks(16, 4), flaky(random.Random(seed)))
        assert not [found for found in played.verdicts.domains if "switch" in found.message], seed
