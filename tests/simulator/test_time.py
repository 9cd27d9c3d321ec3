"""Time is neither lost nor made up; and the simulator's account is the controller's own."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from crds.job_status import JobState
from reconcilers.goodput.goodput import seconds_by_state
from simulator.account import STATES, TimeUse
from simulator.engine import Simulation
from simulator.fleet import Fleet, parsed
from simulator.runs import simulate


def fleet(nodes: int = 64, rate: float = 100.0, **more: Any) -> Fleet:
    faults = {"per1000NodeDays": rate} | more.pop("faults", {})
    policies = {"restartCount": 1000} | more.pop("policies", {})
    return parsed({"nodes": nodes, "spares": 8, "faults": faults, "policies": policies} | more, "test")


RICH = {
    "badNodes": {"share": 0.1},
    "bursts": {"size": 3, "withinSeconds": 100},
    "slowdowns": {"per1000NodeDays": 100},
    "corruptions": {"per1000NodeDays": 20},
    "preemptionsPer1000NodeDays": 50,
}


@settings(max_examples=5, deadline=None, database=None)
@given(
    seed=st.integers(0, 10_000),
    rate=st.sampled_from([0.0, 50.0, 400.0]),
    least=st.sampled_from([None, 32]),
    groups=st.booleans(),
    memory=st.sampled_from([None, "auto", 20.0]),
    replicas=st.sampled_from([0, 1]),
    check=st.booleans(),
)
def test_all_seconds_sum_up_to_the_horizon(
    seed: int, rate: float, least: int | None, groups: bool, memory: Any, replicas: int, check: bool
) -> None:
    policies = {"memoryCheckpointSeconds": memory, "replicas": replicas, "nodeCheckAfter": check}
    policies |= {"groupNodes": 16} if groups else {"excludeStragglers": True}
    found = fleet(
        rate=rate,
        minNodes=None if groups else least,
        faults=RICH,
        policies=policies,
        capacity=[{"day": 0.2, "nodes": -12}, {"day": 0.4, "nodes": 10}],
    )
    outcome = Simulation(found, seed).run(0.5)
    seconds = outcome.account.seconds
    assert sum(seconds.values()) == pytest.approx(outcome.seconds)
    assert all(value >= -1e-6 for value in seconds.values())
    assert outcome.account.work == pytest.approx(seconds[TimeUse.USEFUL])


@pytest.mark.parametrize("seed", range(2))
def test_the_account_is_what_the_controllers_own_ledger_says(seed: int) -> None:
    kinds = {"hang": 0}  # of NCCL's watchdog the ledger learns as late as everybody
    found = fleet(nodes=16, rate=300.0, faults={"kinds": kinds}, policies={"nodeCheckAfter": seed % 2 == 0})
    simulation = Simulation(found, seed)
    outcome = simulation.run(2.0)
    (crew,) = simulation.state.active
    goodput = crew.job.job.status.goodput
    assert goodput is not None
    ledger = seconds_by_state(goodput, simulation.state.at())
    for state in JobState:
        ours = sum(outcome.account.seconds[part] for part in TimeUse if STATES[part] == state.value)
        # a step, or the detection, of each interruption may be on either side of the border
        assert ours == pytest.approx(ledger.get(state, 0.0), abs=5.1 * (outcome.interruptions + 1)), state


def test_a_seed_gives_the_same_run_again_and_another_gives_another() -> None:
    found = fleet(faults=RICH)
    first, again, other = (Simulation(found, seed).run(1.0) for seed in (1, 1, 2))
    assert first == again
    assert first.account != other.account


def test_more_failures_never_give_more_goodput_in_the_mean() -> None:
    rates = (0.0, 50.0, 250.0)
    means = [simulate(fleet(nodes=32, rate=rate), 0.7, range(3)).goodput.value for rate in rates]
    assert means == sorted(means, reverse=True)


def test_a_fleet_in_which_nothing_fails_trains_all_the_time_but_for_its_start_and_its_saves() -> None:
    outcome = Simulation(fleet(rate=0.0), 0).run(1.0)
    assert outcome.goodput > 0.998 and outcome.interruptions == 0 and outcome.rounds == 1


def test_who_spends_his_budget_fails_as_the_controller_says() -> None:
    kinds = {"hang": 0, "device": 0, "node": 0, "switch": 0}
    found = fleet(rate=20_000.0, faults={"kinds": kinds}, policies={"restartCount": 3})
    outcome = Simulation(found, 0).run(0.2)
    assert "RestartLimitExceeded" in outcome.ended or "SameErrorRepeated" in outcome.ended
    assert outcome.account.seconds[TimeUse.ENDED] > 0
