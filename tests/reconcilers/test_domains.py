"""Worlds by domain: whole units of one switch, ranks contiguous by domain, standby workers within it."""

from __future__ import annotations

import random
from collections import Counter
from dataclasses import replace
from itertools import groupby, pairwise

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from crds.phases import RendezvousPhase
from crds.ranges import MAX_RANKED_CHARACTERS, ranked_to_text
from crds.rendezvous import Rendezvous
from reconcilers.conditions.pods import NODES_WITHOUT_DOMAIN
from reconcilers.observed.domains import AUTO, domain_of
from reconcilers.world.domains import chosen, in_rank_order, in_whole_units, lost_by_domain
from reconcilers.world.participants import Participant
from tests.reconcilers.build import NOW, bounds, decide, job, participant, worker
from tests.reconcilers.judging import judge, warnings

FORMED, REFORMING, FORMING = RendezvousPhase.FORMED, RendezvousPhase.REFORMING, RendezvousPhase.FORMING


def idle(domain: str, *indices: int) -> list[Participant]:
    return [participant(i, domain=domain, seconds_since_joined=600) for i in indices]


def formed(*members: int) -> Rendezvous:
    return Rendezvous(
        round=1, phase=FORMED, members=list(members), incarnations=[1] * len(members), formed_at=NOW
    )


# --- 4 domains of 4 nodes ----------------------------------------------------------------------------------


def test_workers_that_are_ready_in_domains_with_too_few_are_named() -> None:
    ready = [*idle("a", 0, 1, 2), *idle("b", 3, 4, 5)]
    waiting = decide(Rendezvous(), ready, bounds(8, 4, unit=4), NOW).rendezvous
    assert waiting.phase is FORMING
    assert waiting.waits_for == "6 of at least 4 workers are ready, 0 of them in domains that have 4"


def test_ranks_of_ten_thousand_workers_scattered_over_all_domains_are_by_index() -> None:
    """Their order would not fit into the object that each agent watches."""
    chance = random.Random(1)
    people = [participant(i, domain=str(chance.randrange(555))) for i in range(10_000)]
    assert [p.index for p in in_rank_order(people, Rendezvous())] == [*range(10_000)]
    fewer = [replace(p, domain=str(chance.randrange(110))) for p in people[:2_000]]
    members = [p.index for p in in_rank_order(fewer, Rendezvous())]
    assert members != sorted(members) and len(ranked_to_text(members)) <= MAX_RANKED_CHARACTERS


# --- properties --------------------------------------------------------------------------------------------

DOMAINS = st.sampled_from(["", "a", "b", "c", "d"])
PEOPLE = st.dictionaries(st.integers(0, 40), DOMAINS, max_size=30).map(
    lambda found: [participant(index, domain=domain) for index, domain in sorted(found.items())]
)


@given(PEOPLE, st.data())
@settings(deadline=None)
def test_each_member_has_one_rank_and_each_domain_contiguous_ranks_by_index(
    people: list[Participant], data: st.DataObject
) -> None:
    before = data.draw(st.permutations([p.index for p in people]))[: len(people) // 2]
    ordered = in_rank_order(people, formed(*before))
    assert sorted(p.index for p in ordered) == [p.index for p in people]
    runs = [domain for domain, _ in groupby(p.domain for p in ordered)]
    assert len(runs) == len(set(runs)), "contiguous"
    assert all(a.index < b.index for a, b in pairwise(ordered) if a.domain == b.domain)


@given(st.data())
@settings(deadline=None)
def test_two_members_that_stay_keep_their_order_however_many_others_come_go_and_move(
    data: st.DataObject,
) -> None:
    world, people = Rendezvous(), dict[int, Participant]()
    for round_ in range(1, 6):
        touched = data.draw(st.dictionaries(st.integers(0, 20), st.none() | DOMAINS, max_size=12))
        stays = [i for i in world.members if i not in touched]
        for index, domain in touched.items():
            people.pop(index, None)
            if domain is not None:
                people[index] = participant(index, incarnation=round_, domain=domain)
        ordered = in_rank_order(list(people.values()), world)
        members = [p.index for p in ordered]
        assert [i for i in members if i in stays] == stays
        world = Rendezvous(
            round=round_, phase=FORMED, members=members, incarnations=[p.incarnation for p in ordered]
        )


@given(PEOPLE, st.integers(1, 5), st.data())
@settings(deadline=None)
def test_a_world_has_whole_units_of_one_domain_and_as_many_as_there_are(
    people: list[Participant], unit: int, data: st.DataObject
) -> None:
    most = sum(count // unit for count in Counter(p.domain for p in people).values())
    size = data.draw(st.integers(0, most)) * unit
    before = data.draw(st.frozensets(st.integers(0, 40)))
    members = chosen(people, size, unit, before, {})
    assert len({p.index for p in members}) == len(members) == size
    assert all(count % unit == 0 for count in Counter(p.domain for p in members).values())
    assert in_whole_units(people, unit) >= most * unit


@given(PEOPLE, st.data())
@settings(deadline=None)
def test_a_gap_is_filled_from_its_own_domain_as_long_as_that_has_somebody(
    people: list[Participant], data: st.DataObject
) -> None:
    before = data.draw(st.frozensets(st.sampled_from([p.index for p in people]))) if people else frozenset()
    gone = data.draw(st.frozensets(st.sampled_from(sorted(before)))) if before else frozenset()
    people = [replace(p, alive=p.index not in gone) for p in people]
    ready = [p for p in people if p.joinable]
    size = min(len(before), len(ready))
    members = chosen(ready, size, 1, before, lost_by_domain(people, before))
    assert {p.index for p in ready if p.index in before} <= {p.index for p in members}, "nobody gives way"
    new = Counter(p.domain for p in members if p.index not in before)
    idle_ = Counter(p.domain for p in ready if p.index not in before)
    gaps = Counter(p.domain for p in people if p.index in gone)
    for domain, gap in gaps.items():
        assert new[domain] >= min(gap, idle_[domain])


def test_nodes_without_a_label_are_named() -> None:
    placed = [worker(0, domain="a"), worker(1), worker(2)]
    stated = judge(job(replicas=3, elasticPolicy={"domain": "rack"}), NODES_WITHOUT_DOMAIN, workers=placed)
    assert warnings(stated[0])[NODES_WITHOUT_DOMAIN].message == (
        "2 workers on nodes without the label rack, such as node node-0, which elasticPolicy.domain reads: "
        "they count as one domain"
    )
    assert [event.reason for event in stated[1]] == [NODES_WITHOUT_DOMAIN]
    for policy in ({"domain": "rack"}, {}):
        known = [worker(0, domain="a")] if policy else placed
        assert not warnings(judge(job(elasticPolicy=policy), NODES_WITHOUT_DOMAIN, workers=known)[0])


# --- labels ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("labels", "policy", "domain"),
    [
        ({"nvidia.com/gpu.clique": "u.1", "network.topology.nvidia.com/accelerator": "nvl1"}, AUTO, "u.1"),
        ({"network.topology.nvidia.com/accelerator": "nvl1"}, AUTO, "nvl1"),
        ({"resource.nvidia.com/computeDomain": "uid"}, AUTO, "uid"),
        ({"rack": "r1", "nvidia.com/gpu.clique": "u.1"}, "rack", "r1"),
        ({"rack": "r1"}, AUTO, ""),
        ({"nvidia.com/gpu.clique": "u.1"}, None, ""),
        (None, AUTO, ""),
    ],
)
def test_the_domain_of_a_node_is_the_value_of_its_label(
    labels: dict[str, str] | None, policy: str | None, domain: str
) -> None:
    assert domain_of({"metadata": {"name": "n", "labels": labels}}, policy) == domain
