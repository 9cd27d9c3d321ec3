"""What holds for whatever is measured: invariants of who is called slow."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import replace

from hypothesis import given, settings
from hypothesis import strategies as st

from crds.findings import Verdict
from healthcheck.fleet import Node
from healthcheck.measurements import CheckHistory, GroupResult, LocalResult, Metric, RoundResult
from healthcheck.settings import Settings
from healthcheck.stragglers import PairSpeeds, own_figures, references_of
from tests.healthcheck.build import Group, fleet, measuring, play

GEMM, BUS, LATENCY = Metric.GEMM_BF16_TFLOPS, Metric.PAIR_BUS_GBPS, Metric.PAIR_LATENCY_US
LIMITS = Settings()
ONE_KIND = replace(LIMITS, least_of_a_kind=1_000)
SPEEDS = st.lists(st.floats(300, 1300), min_size=1, max_size=24)
METRICS = st.sampled_from([GEMM, LATENCY])


def told(values: Sequence[float], metric: Metric = GEMM) -> dict[str, LocalResult]:
    return {str(i): LocalResult(measured={metric: value}) for i, value in enumerate(values, 1)}


def again(values: Mapping[str, float], number: int, metric: Metric = GEMM) -> RoundResult:
    groups = (GroupResult((name,), True, measured={metric: value}) for name, value in values.items())
    return RoundResult(number, tuple(groups))


def slow(
    first: Sequence[float], *further: Sequence[float], metric: Metric = GEMM, limits: Settings = LIMITS
) -> set[str]:
    """Who is called slow by these measurements of everybody; without further ones, two that were the same."""
    nodes = fleet(len(first))
    names = [node.name for node in nodes]
    rounds = [
        again(dict(zip(names, values, strict=True)), number, metric)
        for number, values in enumerate(further or [first] * limits.remeasurements, 1)
    ]
    return set(own_figures(CheckHistory(told(first, metric), tuple(rounds)), nodes, limits).slow)


@given(SPEEDS, st.integers(-20, 20), METRICS)
def test_the_unit_of_a_figure_decides_nothing(values: list[float], power: int, metric: Metric) -> None:
    scaled = [value * 2.0**power for value in values]
    assert slow(values, metric=metric) == slow(scaled, metric=metric)


@given(SPEEDS, st.randoms(use_true_random=False))
def test_the_order_of_nodes_decides_nothing(values: list[float], rng: random.Random) -> None:
    order = list(range(len(values)))
    rng.shuffle(order)
    shuffled = slow([values[place] for place in order])
    assert {str(order[int(name) - 1] + 1) for name in shuffled} == slow(values)


@given(st.floats(1e-9, 1e9), st.integers(1, 40), METRICS)
@settings(max_examples=40)
def test_equal_figures_make_nobody_slow(value: float, size: int, metric: Metric) -> None:
    nodes, history = fleet(size), CheckHistory(told([value] * size, metric))
    assert not slow([value] * size, metric=metric)
    found = own_figures(history, nodes, LIMITS)
    assert not found.to_measure_again and not found.classes


@given(st.lists(st.floats(300, 1300), min_size=5, max_size=24), st.data())
def test_a_faster_further_measurement_never_makes_a_node_slow(
    values: list[float], data: st.DataObject
) -> None:
    second = data.draw(st.lists(st.floats(300, 1300), min_size=len(values), max_size=len(values)))
    which = data.draw(st.integers(0, len(values) - 1))
    faster = [*second[:which], second[which] * data.draw(st.floats(1, 3)), *second[which + 1 :]]
    assert slow(values, faster, values) <= slow(values, second, values)


@given(st.lists(st.floats(600, 700), min_size=5, max_size=24), st.floats(200, 700), st.floats(1, 3))
def test_a_faster_first_measurement_never_makes_a_node_slow(
    others: list[float], value: float, times: float
) -> None:
    name = str(len(others) + 1)
    if name not in slow([*others, value], limits=ONE_KIND):
        assert name not in slow([*others, value * times], limits=ONE_KIND)


@given(st.lists(st.one_of(st.just(0.0), st.floats(), st.floats(0, 2)), min_size=1, max_size=12), METRICS)
@settings(max_examples=80)
def test_whatever_a_clock_shows_is_judged(values: list[float], metric: Metric) -> None:
    nodes, history = fleet(len(values)), CheckHistory(told(values, metric))
    known = replace(LIMITS, references={("", metric): 1.0})
    slow(values, metric=metric, limits=known)
    own_figures(history, nodes, known)
    references_of(history, nodes, known)
    groups = [GroupResult((str(i), str(i + 1)), True, measured={LATENCY: v}) for i, v in enumerate(values)]
    rounds = (RoundResult(1, tuple(groups)),)
    judge = PairSpeeds(rounds, fleet(len(values) + 1), LIMITS).judge
    assert all(str(found) for group in groups for found in judge(group))


@given(st.lists(st.floats(10, 60), min_size=2, max_size=16), st.lists(st.floats(10, 60), max_size=16))
def test_later_rounds_change_nothing_about_earlier_ones(first: list[float], later: list[float]) -> None:
    def round_of(number: int, speeds: Sequence[float]) -> RoundResult:
        groups = (
            GroupResult((str(2 * i + 1), str(2 * i + 2)), True, measured={BUS: speed})
            for i, speed in enumerate(speeds)
        )
        return RoundResult(number, tuple(groups))

    nodes = fleet(40)
    one, two = round_of(1, first), round_of(2, later)
    before, after = PairSpeeds([one], nodes, LIMITS), PairSpeeds([one, two], nodes, LIMITS)
    assert [before.judge(group) for group in one.groups] == [after.judge(group) for group in one.groups]


@given(st.integers(2, 16), st.floats(0, 0.6), st.randoms(use_true_random=False))
@settings(max_examples=40)
def test_questions_about_speed_come_to_an_end(size: int, spread: float, rng: random.Random) -> None:
    """However much figures vary: each node measures again twice at most, and nobody is faulty for it."""

    def probe(_: int, group: Group) -> GroupResult:
        return GroupResult(group, True, measured={BUS: 45 * (1 - spread * rng.random())})

    local = told([650 * (1 - spread * rng.random()) for _ in range(size)])
    played = play(fleet(size), probe, local=local)
    alone = Counter(groups[0] for round_ in played.groups for groups in round_ if len(groups) == 1)
    assert all(count <= LIMITS.remeasurements for count in alone.values())
    assert len(played.rounds) <= LIMITS.most_rounds_about_slowness + LIMITS.remeasurements
    assert not played.faulty


def test_healthy_fleets_have_a_straggler_no_oftener_than_agreed() -> None:
    """In a fixed sample: noise that is a node's own and comes again, so that measuring again does not help."""
    for size, spread in ((5, 0.05), (16, 0.02), (100, 0.01), (100, 0.05)):
        rng = random.Random(size)
        wrong = sum(bool(slow([650 * (1 + rng.gauss(0, spread)) for _ in range(size)])) for _ in range(200))
        assert wrong <= 5, f"{wrong} of 200 at {size} nodes and {spread:.0%}: 2 are agreed"


def test_noise_with_heavy_tails_makes_nobody_slow() -> None:
    rng = random.Random(3)

    def measured() -> list[float]:
        tails = (rng.gauss(0, 1) / (rng.gammavariate(1.5, 2) / 3) ** 0.5 for _ in range(200))
        return [max(0.0, 650 * (1 + 0.01 * tail)) for tail in tails]

    checks = [(measured(), measured(), measured()) for _ in range(100)]
    assert sum(bool(slow(*check)) for check in checks) <= 1
    judged = (own_figures(CheckHistory(told(first)), fleet(200), LIMITS) for first, *_ in checks)
    assert sum(bool(found.to_measure_again) for found in judged) > 20, "once they do look slow"


def test_an_older_generation_under_the_same_label_is_told_and_not_blamed() -> None:
    rng = random.Random(5)
    values = [(520 if number < 5 else 650) * (1 + rng.gauss(0, 0.01)) for number in range(20)]
    nodes, history = fleet(20), CheckHistory(told(values))
    judged = own_figures(history, nodes, LIMITS)
    assert not slow(values) and not judged.to_measure_again
    (found,) = judged.classes
    assert found.nodes == ("1", "2", "3", "4", "5") and "5 of the 20 nodes" in found.evidence
    assert slow([300, *values]) == {"1"}, "slow beside its own generation"


def test_a_fleet_that_is_slow_as_a_whole_is_told_and_teaches_nothing() -> None:
    rng = random.Random(5)
    values = [400 * (1 + rng.gauss(0, 0.01)) for _ in range(8)]
    nodes = [Node(str(number), "H100") for number in range(1, 9)]
    history = CheckHistory(told(values))
    learnt = references_of(history, nodes, LIMITS)
    assert abs(learnt["H100", GEMM] - 400) < 10
    known = replace(LIMITS, references={("H100", GEMM): 650.0})
    (found,) = own_figures(history, nodes, known).classes
    assert len(found.nodes) == 8 and "of class H100 together are at 6" in found.evidence
    assert not references_of(history, nodes, known)
    assert not own_figures(history, nodes, known).slow


def test_who_is_fast_when_measured_again_is_healthy_and_the_check_is_over() -> None:
    figures = [650.0 + number for number in range(8)]
    first = told([400.0, *figures])
    recovered = {**told([655.0, *figures])}

    def probe(_: int, group: Group) -> GroupResult:
        return GroupResult(group, True, measured={BUS: 45.0})

    played = play(fleet(9), probe, local=first, again=measuring(recovered))
    alone = [group for groups in played.groups for group in groups if len(group) == 1]
    assert alone == [("1",)], "it asks once, when screening leaves it free, and nobody else"
    assert len(played.named(Verdict.HEALTHY)) == 9
