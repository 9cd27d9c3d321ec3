"""What holds for every fleet, wherever its faults are."""

from __future__ import annotations

import math
from collections import Counter
from dataclasses import replace
from itertools import combinations

from hypothesis import given, settings
from hypothesis import strategies as st

from crds.findings import Verdict
from healthcheck.diagnosis import investigate
from healthcheck.fleet import Domain, Node
from healthcheck.measurements import CheckHistory, GroupResult, RoundResult
from healthcheck.odds import log_odds
from healthcheck.parts import Components, log_parts
from healthcheck.plan import ProbeRound, next_step
from healthcheck.settings import Settings
from healthcheck.trials import Symptom, Trial
from tests.counting import calls
from tests.healthcheck.build import Group, Probe, cut, fleet, hard, play

SIZES = st.integers(1, 24)
LIMITS = Settings()


@st.composite
def hard_faults(draw: st.DrawFn) -> tuple[list[Node], set[str]]:
    """A fleet of which half are faulty at most, with three healthy nodes at least."""
    nodes = fleet(draw(st.integers(4, 24)))
    most = min(len(nodes) // 2, len(nodes) - LIMITS.failed.witnesses)
    bad = draw(st.sets(st.sampled_from([node.name for node in nodes]), max_size=most))
    return nodes, bad


@st.composite
def chances(draw: st.DrawFn) -> tuple[list[Node], Probe]:
    """A fleet whose every test fails or passes by chance, some members not answering at all."""
    nodes = fleet(draw(st.integers(1, 9)))
    rng = draw(st.randoms(use_true_random=False))
    failing, mute = draw(st.floats(0, 1)), draw(st.sampled_from([0.0, 0.0, 0.1]))
    memory: dict[tuple[int, Group], GroupResult] = {}

    def probe(round_: int, group: Group) -> GroupResult:
        if (round_, group) not in memory:
            silent = tuple(name for name in group if rng.random() < mute)
            passed = not silent and rng.random() >= failing
            memory[round_, group] = GroupResult(group, passed, silent=silent)
        return memory[round_, group]

    return nodes, probe


@given(SIZES)
def test_a_healthy_fleet_ends_after_two_rounds_without_verdicts(size: int) -> None:
    """One, where everybody has met everybody."""
    played = play(fleet(size), hard(()), local={})
    assert len(played.rounds) == (0 if size < 2 else 1 if size < 4 else 2)
    assert played.named(Verdict.HEALTHY) == ({node.name for node in fleet(size)} if size > 1 else set())
    assert not played.verdicts.links and not played.verdicts.domains


@given(hard_faults())
@settings(max_examples=20, deadline=None)
def test_hard_faults_to_half_are_all_found_and_no_healthy_node_is_blamed(
    case: tuple[list[Node], set[str]],
) -> None:
    nodes, bad = case
    played = play(nodes, hard(bad))
    assert played.faulty == bad
    assert not played.named(Verdict.INCONCLUSIVE) and not played.verdicts.links
    assert len(played.rounds) <= LIMITS.most_rounds


@given(st.data())
@settings(max_examples=15, deadline=None)
def test_however_many_are_hard_faulty_no_healthy_node_is_ever_blamed(data: st.DataObject) -> None:
    nodes = fleet(data.draw(SIZES))
    bad = data.draw(st.sets(st.sampled_from([node.name for node in nodes])))
    played = play(nodes, hard(bad))
    assert played.faulty <= bad
    assert played.named(Verdict.HEALTHY).isdisjoint(bad)


@given(st.integers(3, 24), st.data())
@settings(max_examples=20, deadline=None)
def test_a_single_bad_link_blames_no_node(size: int, data: st.DataObject) -> None:
    link = data.draw(st.sets(st.sampled_from([n.name for n in fleet(size)]), min_size=2, max_size=2))
    played = play(fleet(size), hard((), links=[link]))
    assert len(played.named(Verdict.HEALTHY)) == size
    assert {found.link for found in played.verdicts.links} <= {frozenset(link)}


@given(st.integers(6, 24), st.data())
@settings(max_examples=20, deadline=None)
def test_beside_a_cut_two_tests_of_a_node_that_fail_by_chance_blame_nobody(
    size: int, data: st.DataObject
) -> None:
    """It may be the only test with its own side of the cut that a node has made."""
    nodes = fleet(size)
    names = st.sampled_from([node.name for node in nodes])
    inside = data.draw(st.sets(names, min_size=2, max_size=size // 2))
    unlucky, turn = data.draw(names), data.draw(st.integers(0, 3))
    own_side: list[tuple[int, Group]] = []

    def probe(round_: int, group: Group) -> GroupResult:
        is_own_side = len({name in inside for name in group}) == 1
        if is_own_side and unlucky in group:
            own_side.append((round_, group))
        return GroupResult(group, is_own_side and (round_, group) not in own_side[turn : turn + 2])

    played = play(nodes, probe)
    assert played.faulty == set()


@given(st.data())
@settings(max_examples=20, deadline=None)
def test_a_part_that_is_cut_off_beside_three_times_as_many_broken_nodes_is_found_and_not_blamed(
    data: st.DataObject,
) -> None:
    """Before its nodes have met, they look broken as well."""
    inside = data.draw(st.integers(2, 4))
    bad = data.draw(st.integers(1, 3 * inside))
    nodes = fleet(data.draw(st.integers(2 * (inside + bad) + 3, 40)))
    order = data.draw(st.permutations([node.name for node in nodes]))
    played = play(nodes, cut(order[:inside], order[inside : inside + bad]))
    assert played.faulty <= set(order[inside : inside + bad])
    assert [set(found.nodes) for found in played.verdicts.domains] == [set(order[:inside])]


@given(st.integers(2, 7), st.data())
def test_a_node_is_in_no_more_parts_of_one_size_and_border_than_are_counted(
    size: int, data: st.DataObject
) -> None:
    names = [node.name for node in fleet(size)]
    pairs = data.draw(st.lists(st.sampled_from(list(combinations(names, 2))), max_size=14))
    found = Counter(
        (len(part), sum((a in part) != (b in part) for a, b in pairs))
        for others in range(size)
        for part in map({names[0]}.union, combinations(names[1:], others))
        if len(Components(sorted(part), [Trial(1, p, True) for p in pairs if part.issuperset(p)]).by_size)
        == 1
    )
    assert all(math.log(count) <= log_parts(*kind) + 1e-9 for kind, count in found.items())


@given(chances(), st.integers(1, 3))
@settings(max_examples=8, deadline=None)
def test_rounds_are_bounded_and_made_of_distinct_nodes_in_groups_of_two_or_three(
    case: tuple[list[Node], Probe], screening: int
) -> None:
    nodes, probe = case
    played = play(nodes, probe, replace(LIMITS, screening_rounds=screening))
    assert len(played.rounds) <= LIMITS.most_rounds
    for groups in played.groups:
        members = [name for group in groups for name in group]
        assert len(members) == len(set(members)) and set(members) <= {node.name for node in nodes}
        assert all(len(group) in (2, 3) for group in groups)
    assert [found.node for found in played.verdicts.nodes] == [node.name for node in nodes]


@given(chances())
@settings(max_examples=8, deadline=None)
def test_replaying_the_recorded_rounds_gives_the_same_steps(case: tuple[list[Node], Probe]) -> None:
    """As a controller does that restarts, even in the middle of a round."""
    nodes, probe = case
    played = play(nodes, probe)
    for done in range(len(played.rounds)):
        step = next_step(CheckHistory({}, played.rounds[:done]), nodes, LIMITS)
        assert isinstance(step, ProbeRound) and list(step.groups) == played.groups[done]
    assert next_step(CheckHistory({}, played.rounds), nodes, LIMITS) == played.verdicts


@given(chances(), st.randoms(use_true_random=False))
@settings(max_examples=8, deadline=None)
def test_names_decide_nothing(case: tuple[list[Node], Probe], rng: object) -> None:
    nodes, probe = case
    names = [node.name for node in nodes]
    others = [f"host-{name}" for name in names]
    rng.shuffle(others)  # type: ignore[attr-defined]
    to_other = dict(zip(names, others, strict=True))
    back = {other: name for name, other in to_other.items()}

    def renamed(round_: int, group: Group) -> GroupResult:
        result = probe(round_, tuple(back[name] for name in group))
        return replace(result, members=group, silent=tuple(to_other[name] for name in result.silent))

    first, second = play(nodes, probe), play([Node(other) for other in others], renamed)
    for verdict in Verdict:
        assert {to_other[name] for name in first.named(verdict)} == second.named(verdict)
    assert {frozenset(to_other[n] for n in found.link) for found in first.verdicts.links} == {
        found.link for found in second.verdicts.links
    }


@given(chances())
@settings(max_examples=8, deadline=None)
def test_results_and_members_in_another_order_lead_to_the_same_verdicts(
    case: tuple[list[Node], Probe],
) -> None:
    nodes, probe = case
    played = play(nodes, probe)
    shuffled = tuple(
        RoundResult(
            round_.number,
            tuple(replace(group, members=group.members[::-1]) for group in reversed(round_.groups)),
        )
        for round_ in played.rounds
    )
    step = next_step(CheckHistory({}, shuffled), nodes, LIMITS)
    assert not isinstance(step, ProbeRound)
    assert [(f.node, f.verdict) for f in step.nodes] == [(f.node, f.verdict) for f in played.verdicts.nodes]


# --- what is said of recorded rounds, whatever they are ------------------------------------------------


@st.composite
def histories(draw: st.DrawFn) -> tuple[list[Node], tuple[RoundResult, ...]]:
    """Nodes in racks or without, and rounds of any groups."""
    size = draw(st.integers(2, 16))
    racks = [(), (Domain("rack", "a"),), (Domain("rack", "b"),), (Domain("rack", "c"),)]
    nodes = [
        Node(str(i), domains=draw(st.sampled_from(racks)), vouched=draw(st.booleans())) for i in range(size)
    ]
    rounds = []
    for number in range(1, draw(st.integers(1, 5)) + 1):
        order = draw(st.permutations([node.name for node in nodes]))
        pairs = zip(order[::2], order[1::2], strict=False)
        rounds.append(RoundResult(number, tuple(GroupResult(pair, draw(st.booleans())) for pair in pairs)))
    return nodes, tuple(rounds)


@given(histories())
@settings(max_examples=30, deadline=None)
def test_nobody_is_guilty_with_fewer_than_three_witnesses_who_passed_with_others(
    case: tuple[list[Node], tuple[RoundResult, ...]],
) -> None:
    nodes, rounds = case
    vouched = {node.name for node in nodes if node.vouched}
    found = investigate(CheckHistory(rounds=rounds), nodes, LIMITS).evidence[Symptom.FAILED]
    for name, testimony in found.attribution.guilty.items():
        witnesses = {other for trial in testimony for other in trial.others(name)}
        assert len(testimony) >= 3 and len(witnesses) >= 3
        assert all(w in vouched or found.ledger.passes(w, without=(name,)) for w in witnesses)


@given(histories(), st.data())
@settings(max_examples=30, deadline=None)
def test_a_pass_never_raises_the_odds_against_a_node(
    case: tuple[list[Node], tuple[RoundResult, ...]], data: st.DataObject
) -> None:
    nodes, rounds = case
    pair = tuple(data.draw(st.permutations([node.name for node in nodes])))[:2]
    passed = (*rounds, RoundResult(len(rounds) + 1, (GroupResult(pair, True),)))
    before, after = (
        investigate(CheckHistory(rounds=each), nodes, LIMITS).evidence[Symptom.FAILED].attribution.odds
        for each in (rounds, passed)
    )
    for name in pair:
        assert after.get(name, -math.inf) <= before.get(name, -math.inf) + 1e-9


@given(st.integers(0, 8), st.integers(0, 8), st.integers(0, 40), st.integers(0, 400))
def test_odds_rise_with_failures_and_fall_with_passes_and_with_failures_of_others(
    failed: int, passed: int, others_failed: int, others_passed: int
) -> None:
    odds = log_odds(failed, passed, others_failed, others_passed)
    assert log_odds(failed, passed + 1, others_failed, others_passed) <= odds + 1e-9
    assert log_odds(failed, passed, others_failed + 1, others_passed) <= odds + 1e-9 or not failed
    assert log_odds(failed + 1, passed, others_failed, others_passed) >= odds - 1e-9


def test_planning_is_linear_in_the_number_of_nodes() -> None:
    def second_round(size: int) -> int:
        """Of a fleet of which every tenth is faulty."""
        nodes = fleet(size)
        first = next_step(CheckHistory(), nodes, LIMITS)
        assert isinstance(first, ProbeRound)
        probe = hard({node.name for node in nodes[::10]})
        done = RoundResult(1, tuple(probe(1, group) for group in first.groups))
        return calls(lambda: next_step(CheckHistory(rounds=(done,)), nodes, LIMITS))

    assert second_round(3_000) <= 13 * second_round(300)
