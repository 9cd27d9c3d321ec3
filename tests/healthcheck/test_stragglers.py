"""Slow nodes and links: compute by each node's own figures, network by the pairs."""

from __future__ import annotations

import random
from collections.abc import Mapping, Sequence

import pytest

from crds.findings import Cause, Verdict
from healthcheck import stragglers
from healthcheck.fleet import Domain, Node
from healthcheck.measurements import CheckHistory, GroupResult, LocalResult, Metric, RoundResult
from healthcheck.settings import Settings
from healthcheck.stragglers import Slowness
from healthcheck.trials import Symptom
from tests.healthcheck.build import Group, Probe, fleet, play

GEMM, BUS, LATENCY = Metric.GEMM_BF16_TFLOPS, Metric.PAIR_BUS_GBPS, Metric.PAIR_LATENCY_US


def gemm(*tflops: float) -> dict[str, LocalResult]:
    return {str(i + 1): LocalResult(measured={GEMM: value}) for i, value in enumerate(tflops)}


def noisy(count: int, around: float, spread: float = 0.01) -> list[float]:
    rng = random.Random(count)
    return [around * (1 + rng.uniform(-spread, spread)) for _ in range(count)]


def network(slow: dict[str, float], slow_links: dict[frozenset[str], float] | None = None) -> Probe:
    """Pairs run at 45 GB/s, divided by the slowest part's factor, with 1 % of noise."""
    rng = random.Random(7)
    links = slow_links or {}

    def probe(round_: int, group: Group) -> GroupResult:
        factor = max(
            [slow.get(name, 1.0) for name in group] + [f for pair, f in links.items() if pair <= set(group)]
        )
        return GroupResult(group, True, measured={BUS: 45 / factor * (1 + rng.uniform(-0.01, 0.01))})

    return probe


def slow_nodes(
    local: Mapping[str, LocalResult], nodes: Sequence[Node], settings: Settings, again: float = 1.0
) -> Mapping[str, tuple[Slowness, ...]]:
    """Those that are slow when everybody measures so often again, `again` times as fast."""
    groups = tuple(
        GroupResult(
            (name,), True, measured={metric: again * value for metric, value in result.measured.items()}
        )
        for name, result in local.items()
    )
    rounds = tuple(RoundResult(number, groups) for number in range(1, settings.remeasurements + 1))
    return stragglers.own_figures(CheckHistory(local, rounds), nodes, settings).slow


def test_ten_percent_slow_among_many_is_seen() -> None:
    local = gemm(*noisy(15, 650), 585)
    assert set(slow_nodes(local, fleet(16), Settings())) == {"16"}


@pytest.mark.parametrize(
    ("values", "slow"), [((650, 640), set()), ((650, 433), {"2"}), ((650, 433, 651), {"2"})]
)
def test_two_or_three_nodes_are_compared_by_ratio(values: tuple[float, ...], slow: set[str]) -> None:
    assert set(slow_nodes(gemm(*values), fleet(len(values)), Settings())) == slow


def test_hardware_classes_are_not_compared_with_each_other() -> None:
    nodes = [Node(str(i), hardware_class="A100" if i > 6 else "H100") for i in range(1, 13)]
    assert slow_nodes(gemm(*noisy(6, 650), *noisy(6, 280)), nodes, Settings()) == {}


@pytest.mark.parametrize(
    ("by_class", "slow"), [({}, {"3", "9"}), ({"cpu": Settings(small_fleet_ratio=1.5)}, {"9"})]
)
def test_each_class_is_judged_by_its_own_settings(by_class: dict[str, Settings], slow: set[str]) -> None:
    nodes = [Node(str(i), hardware_class="cpu" if i < 4 else "H100") for i in range(1, 10)]
    local = gemm(1.0, 1.0, 0.75, *noisy(5, 650), 500)
    assert set(slow_nodes(local, nodes, Settings(by_class=by_class))) == slow


@pytest.mark.parametrize("by_class", [{}, {"cpu": Settings(small_fleet_ratio=1.5)}])
def test_the_only_node_of_a_class_with_its_own_settings_is_compared_with_earlier_checks(
    by_class: dict[str, Settings],
) -> None:
    nodes = [Node(str(i), hardware_class="cpu" if i == 1 else "H100") for i in range(1, 9)]
    known = Settings(by_class=by_class, references={("cpu", GEMM): 1.0})
    assert set(slow_nodes(gemm(0.4, *noisy(7, 650)), nodes, known)) == {"1"}


@pytest.mark.parametrize("factor", [1.1, 1.5, 3.0])
def test_a_node_with_a_slow_network_is_a_straggler_and_its_first_partner_is_not(factor: float) -> None:
    played = play(fleet(16), network({"6": factor}))
    assert played.named(Verdict.STRAGGLER) == {"6"}
    assert played.of("6").causes == (Cause.SLOW_NETWORK,)
    assert len(played.named(Verdict.HEALTHY)) == 15
    assert len(played.rounds) <= 5


def test_a_quarter_of_slow_networks_is_found_in_the_few_rounds_about_slowness() -> None:
    slow = [str(n) for n in range(2, 33, 4)]
    assert play(fleet(33), network(dict.fromkeys(slow, 2.0))).named(Verdict.STRAGGLER) == set(slow)


@pytest.mark.parametrize("crashed", [(), ("11",)])
def test_a_suspect_whose_own_tests_fail_when_it_measures_again_is_faulty(crashed: tuple[str, ...]) -> None:
    def probe(_: int, group: Group) -> GroupResult:
        return GroupResult(group, True)

    def again(_: int, group: Group) -> GroupResult:
        return GroupResult(group, False, "11: cuda:0 computes wrongly", crashed=crashed)

    played = play(fleet(16), probe, local=gemm(*noisy(10, 650), 500, *noisy(5, 650)), again=again)
    assert played.faulty == {"11"} and len(played.named(Verdict.HEALTHY)) == 15
    assert played.of("11").causes == (Cause.LOCAL_TEST,)
    assert played.of("11").message == "its local tests failed: 11: cuda:0 computes wrongly"


def test_slow_compute_and_slow_network_hide_nothing_from_each_other() -> None:
    played = play(fleet(16), network({"6": 1.5}), local=gemm(*noisy(10, 650), 500, *noisy(5, 650)))
    assert played.named(Verdict.STRAGGLER) == {"6", "11"}
    assert played.of("11").causes == (Cause.SLOW_COMPUTE,)


def test_a_slow_link_is_a_link_and_makes_no_straggler() -> None:
    played = play(fleet(8), network({}, {frozenset(("3", "6")): 2.0}))
    (found,) = played.verdicts.links
    assert found.link == {"3", "6"} and found.symptom == Symptom.SLOW
    assert len(played.named(Verdict.HEALTHY)) == 8


def test_a_network_that_is_slower_between_racks_makes_no_straggler() -> None:
    nodes = [Node(str(i + 1), domains=(Domain("rack", f"r{i // 3}"),)) for i in range(12)]
    rack = {node.name: node.domains for node in nodes}
    rng = random.Random(3)

    def probe(round_: int, group: Group) -> GroupResult:
        speed = 45.0 if len({rack[name] for name in group}) == 1 else 15.0
        return GroupResult(group, True, measured={BUS: speed * (1 + rng.uniform(-0.01, 0.01))})

    played = play(nodes, probe)
    assert len(played.named(Verdict.HEALTHY)) == 12 and len(played.rounds) == 2


def test_jitter_of_latency_below_its_floor_is_not_slow() -> None:
    def probe(round_: int, group: Group) -> GroupResult:
        return GroupResult(group, True, measured={LATENCY: 28.0 if "1" in group else 20.0})

    assert len(play(fleet(12), probe).rounds) == 2


@pytest.mark.parametrize("quick", [{"1"}, {str(i) for i in range(1, 12)}])
def test_a_latency_of_zero_and_a_median_of_zero_come_to_verdicts(quick: set[str]) -> None:
    """A clock too coarse for a message shows 0: that divides nothing, and makes nobody slow."""

    def probe(round_: int, group: Group) -> GroupResult:
        return GroupResult(group, True, measured={LATENCY: 0.0 if quick & set(group) else 20.0, BUS: 45.0})

    nodes, local = fleet(12), gemm(*[0.0 if str(i) in quick else 650.0 for i in range(1, 13)])
    assert play(nodes, probe).named(Verdict.HEALTHY) == {node.name for node in nodes}
    assert len(play(nodes, probe, local=local).verdicts.nodes) == 12
