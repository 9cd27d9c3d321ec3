"""How seldom chance gets a healthy node called faulty."""

from __future__ import annotations

import statistics

from benchmarks.diagnosis_chance import Play, weight
from healthcheck.settings import Settings


def test_chance_blames_a_healthy_node_in_fewer_fleets_than_the_odds_allow() -> None:
    weights = [weight(Play(9, 0.05, number)) for number in range(50)]
    assert 0 < 9 * statistics.fmean(weights) < 1 / Settings().failed.odds_a_node / 10
