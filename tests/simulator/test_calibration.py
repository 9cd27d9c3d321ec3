"""What others measured or computed, with policies of ours off; see docs/simulator.md."""

from __future__ import annotations

from pathlib import Path

import pytest

from simulator.engine import Simulation
from simulator.fleet import Fleet, read_fleet

EXAMPLES = Path(__file__).parents[2] / "examples" / "simulate"


def example(name: str) -> Fleet:
    return read_fleet(EXAMPLES / f"{name}.yaml")


def test_llama_3_is_interrupted_as_often_and_trains_as_much() -> None:
    outcome = Simulation(example("llama3"), 0).run(54)
    assert abs(outcome.interruptions - 419) <= 60
    assert outcome.full_speed > 0.9


@pytest.mark.parametrize("nodes", [128, 12_500])
def test_the_closed_form_of_rsc_holds(nodes: int) -> None:
    fleet = example("rsc").model_copy(update={"nodes": nodes})
    days = min(160 * 128 / nodes, 30)
    expected = 1 - nodes * 6.5 / 1_000 * 120 / 86_400
    assert Simulation(fleet, 1).run(days).full_speed == pytest.approx(expected, abs=0.01)


def test_replica_groups_bring_what_ft_hsdp_says() -> None:
    everybody = Simulation(example("ft-hsdp"), 0).run(1)
    groups = Simulation(example("ft-hsdp-groups"), 0).run(6)
    assert everybody.full_speed == pytest.approx(0.44, abs=0.05)
    assert groups.full_speed == pytest.approx(0.80, abs=0.05)


def test_a_tenth_of_aire_sims_fleet_recovers_as_its_own_formula_says() -> None:
    """Nothing fails while it recovers: one over one and what recoveries take of a second of training."""
    fleet = example("airesim")
    few = fleet.times.model_copy(update={"restart_seconds": 12_000.0})
    fleet = fleet.model_copy(update={"nodes": 410, "spares": 26, "times": few})
    outcome = Simulation(fleet, 0).run(10)
    trained = outcome.account.work
    expected = 1 / (1 + outcome.interruptions * 12_000 / trained)
    assert outcome.full_speed == pytest.approx(expected, abs=0.01)
    rate = outcome.interruptions / (trained / 86_400) / 410
    assert 0.0107 < rate < 0.0175, "repairs cure bad nodes by and by, which fail most at first"
