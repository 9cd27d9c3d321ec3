"""Judges of diagnosis.py: our diagnosis, and DLRover's rule.

Ours runs the code of the NodeCheck reconciler. DLRover's is written after its
`NetworkCheckRendezvousManager` and agent (dlrover/python/master/elastic_training/rdzv_manager.py and
dlrover/python/elastic_agent/torch/training.py): round 0 pairs neighbours and ends the check if all pass;
round 1 sorts by elapsed time, with a failure counting as 3600 s and equal ones in any order, and pairs the
fastest with the slowest; a node is faulty if it failed both rounds, and slow if its best time, matrix
product plus all-reduce, is over twice the median. With up to three nodes, any failure blames all.
"""

import random
import statistics
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from benchmarks.diagnosis_faults import Fleet
from crds.findings import Verdict
from healthcheck.diagnosis import Diagnosis
from healthcheck.fleet import Domain, Node, NodeName
from healthcheck.measurements import CheckHistory, GroupResult, LocalResult, Metric, RoundResult
from healthcheck.plan import next_step
from healthcheck.settings import Settings

NOISE = 0.01
"""Standard deviation of every measured figure, as a share of it."""
GEMM = Metric.GEMM_BF16_TFLOPS
GEMM_TFLOPS, PAIR_BUS_GBPS = 650.0, 45.0
GEMM_MS, ALL_REDUCE_MS = 13.5, 0.63
"""Times of DLRover's two probes on a healthy H100, by its datasheet; DLRover adds them up."""
FAILED_SECONDS = 3600.0


@dataclass(frozen=True)
class Answer:
    """Answer of one judge on one fleet."""

    faulty: frozenset[int]
    slow: frozenset[int]
    undecided: frozenset[int]
    links: frozenset[frozenset[int]]
    domains: frozenset[frozenset[int]]
    """Nodes of each rack or part of the network that is named."""
    rounds: int


def played(
    nodes: Sequence[Node],
    local: Mapping[NodeName, LocalResult],
    settings: Settings,
    test: Callable[[tuple[NodeName, ...]], GroupResult],
) -> tuple[Diagnosis, int]:
    """Run a check as the NodeCheck reconciler does; return its verdicts and the number of rounds.

    Args:
        local: results of each node's local tests.
        test: returns the result of one group; called in the order of a round's groups.
    """
    rounds: tuple[RoundResult, ...] = ()
    while not isinstance(step := next_step(CheckHistory(local, rounds), nodes, settings), Diagnosis):
        rounds += (RoundResult(step.number, tuple(test(group) for group in step.groups)),)
    return step, len(rounds)


def ask_ours(fleet: Fleet, rng: random.Random, settings: Settings) -> Answer:
    names = [f"node-{i}" for i in range(fleet.size)]
    index = {name: i for i, name in enumerate(names)}
    nodes = [Node(name, "gpu", _rack_label(fleet, i), i in fleet.vouched) for i, name in enumerate(names)]
    local = {
        name: LocalResult(measured={GEMM: _speed(GEMM_TFLOPS, fleet.slow_compute, (i,), rng)})
        for i, name in enumerate(names)
    }
    verdicts, rounds = played(nodes, local, settings, lambda group: _test(fleet, group, index, rng))

    def numbers(verdict: Verdict) -> frozenset[int]:
        return frozenset(index[name] for name in verdicts.named(verdict))

    return Answer(
        faulty=numbers(Verdict.FAULTY),
        slow=numbers(Verdict.STRAGGLER),
        undecided=numbers(Verdict.INCONCLUSIVE),
        links=frozenset(frozenset(index[name] for name in found.link) for found in verdicts.links),
        domains=frozenset(frozenset(index[name] for name in found.nodes) for found in verdicts.domains),
        rounds=rounds,
    )


def ask_dlrover(fleet: Fleet, rng: random.Random) -> Answer:
    """Judge by DLRover's rule, which does not know undecided nodes, links or racks."""
    everybody = list(range(fleet.size))
    passed: dict[int, bool] = {}
    seconds: dict[int, float] = {}
    _dlrover_round(fleet, _dlrover_neighbours(everybody), rng, passed, seconds)
    rounds = 1
    if not all(passed.values()):
        if fleet.size <= 3:
            return Answer(frozenset(everybody), frozenset(), frozenset(), frozenset(), frozenset(), rounds)
        in_order_of_report = rng.sample(everybody, fleet.size)
        by_time = sorted(in_order_of_report, key=lambda node: seconds[node])
        _dlrover_round(fleet, _dlrover_extremes(by_time), rng, passed, seconds)
        rounds = 2
    limit = 2 * statistics.median(seconds.values())
    return Answer(
        faulty=frozenset(node for node in everybody if not passed[node]),
        slow=frozenset(node for node in everybody if passed[node] and seconds[node] > limit),
        undecided=frozenset(),
        links=frozenset(),
        domains=frozenset(),
        rounds=rounds,
    )


def _dlrover_round(
    fleet: Fleet,
    groups: list[list[int]],
    rng: random.Random,
    passed: dict[int, bool],
    seconds: dict[int, float],
) -> None:
    """Run one round, and merge its results with earlier ones: passed by or, times by min."""
    for group in groups:
        well = fleet.test_passes(group, rng)
        all_reduce_ms = ALL_REDUCE_MS * PAIR_BUS_GBPS / _speed(PAIR_BUS_GBPS, fleet.slow_network, group, rng)
        for node in group:
            gemm_ms = GEMM_MS * GEMM_TFLOPS / _speed(GEMM_TFLOPS, fleet.slow_compute, (node,), rng)
            elapsed = (gemm_ms + all_reduce_ms) / 1000 if well else FAILED_SECONDS
            passed[node] = passed.get(node, False) or well
            seconds[node] = min(seconds.get(node, elapsed), elapsed)


def _dlrover_neighbours(nodes: list[int]) -> list[list[int]]:
    return _join_odd_one([nodes[at : at + 2] for at in range(0, len(nodes), 2)])


def _dlrover_extremes(by_time: list[int]) -> list[list[int]]:
    half = (len(by_time) + 1) // 2
    return _join_odd_one([sorted({by_time[at], by_time[-1 - at]}) for at in range(half)])


def _join_odd_one(groups: list[list[int]]) -> list[list[int]]:
    if len(groups) > 1 and len(groups[-1]) == 1:
        groups[-2:] = [groups[-2] + groups[-1]]
    return groups


def _test(
    fleet: Fleet, names: Sequence[NodeName], index: dict[NodeName, int], rng: random.Random
) -> GroupResult:
    members = [index[name] for name in names]
    silent = tuple(name for name in names if rng.random() < fleet.lost)
    if silent:
        return GroupResult(tuple(names), False, silent=silent)
    if not fleet.test_passes(members, rng):
        return GroupResult(tuple(names), False, "simulated")
    speed = _speed(PAIR_BUS_GBPS, fleet.slow_network, members, rng)
    return GroupResult(tuple(names), True, measured={Metric.PAIR_BUS_GBPS: speed})


def _speed(full: float, slow: Mapping[int, float], members: Sequence[int], rng: random.Random) -> float:
    """Return a measurement: the slowest member's pace, with noise."""
    return full / max(slow.get(member, 1.0) for member in members) * (1 + rng.gauss(0, NOISE))


def _rack_label(fleet: Fleet, node: int) -> tuple[Domain, ...]:
    return (Domain("rack", str(fleet.racks[node])),) if fleet.racks and fleet.labelled else ()
