"""Probability that a healthy node is called faulty if tests fail by chance: too rare to count in plain
fleets.

One node of a healthy fleet draws its tests as a faulty one would, and each fleet is weighted by how much
less likely the node's results are by chance alone (importance sampling). The mean weight of the fleets in
which the node was called faulty is the probability of that by chance alone: unbiased, whatever the rule
and whenever it stops. All other nodes draw by chance alone.

    python -m benchmarks.diagnosis_chance --nodes 1000 --share 0.05 --fleets 300 --jobs 2
"""

import argparse
import multiprocessing
import os
import random
import statistics
from dataclasses import dataclass, replace
from math import exp, log, sqrt

from benchmarks.diagnosis_fleets import played
from crds.findings import Verdict
from healthcheck.fleet import Node, NodeName
from healthcheck.measurements import GroupResult, LocalResult
from healthcheck.settings import Settings

RATES = (0.95, 0.8, 0.65, 0.5, 0.35)
"""Shares of its tests that the node may fail, equally likely, as is typical of blamed nodes."""


@dataclass(frozen=True)
class Play:
    """Simulation of one fleet."""

    nodes: int
    share: float
    """Share of tests that fail by chance, above 0."""
    number: int


def weight(play: Play) -> float:
    """Return P(results of the node | chance) / P(results | as drawn) if it was called faulty, else 0."""
    rng = random.Random(f"{play.nodes} {play.share} {play.number}")
    settings = replace(Settings(), rotation=rng.getrandbits(32))
    names = [f"node-{i}" for i in range(play.nodes)]
    nodes = [Node(name, "gpu") for name in names]
    one, rate = rng.choice(names), rng.choice(RATES)
    ended: list[bool] = []

    def test(group: tuple[NodeName, ...]) -> GroupResult:
        passed = rng.random() >= (rate if one in group else play.share)
        if one in group:
            ended.append(passed)
        return GroupResult(group, passed)

    verdicts, _ = played(nodes, dict.fromkeys(names, LocalResult()), settings, test)
    if one not in verdicts.named(Verdict.FAULTY):
        return 0.0
    by_chance = _log_likelihood(ended, play.share)
    return 1 / statistics.fmean(exp(_log_likelihood(ended, rate) - by_chance) for rate in RATES)


def _log_likelihood(passed: list[bool], share_failing: float) -> float:
    return sum(log(1 - share_failing if well else share_failing) for well in passed)


def main() -> None:
    parser = argparse.ArgumentParser(
        description="Probability that chance alone gets a healthy node called faulty."
    )
    parser.add_argument("--nodes", type=int, default=33)
    parser.add_argument("--share", type=float, default=0.05, help="share of tests that fail by chance")
    parser.add_argument("--fleets", type=int, default=1000)
    parser.add_argument("--jobs", type=int, default=os.cpu_count(), help="processes")
    asked = parser.parse_args()
    plays = [Play(asked.nodes, asked.share, number) for number in range(asked.fleets)]
    with multiprocessing.get_context("fork").Pool(asked.jobs) as pool:
        weights = pool.map(weight, plays, chunksize=2)
    mean, error = statistics.fmean(weights), statistics.stdev(weights) / sqrt(len(weights))
    print(
        f"{asked.nodes} nodes, {asked.share:.1%} of tests: some healthy node is blamed in "
        f"{asked.nodes * mean:.1e} ± {asked.nodes * error:.1e} of the fleets"
    )


if __name__ == "__main__":
    main()
