"""Leaving out the workers that simply run changes nothing: the same faults give the same worlds at the same times.

With `settle`, slots forget what they remembered, and which of several standbys steps in is another's turn: then
the means agree.
"""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from simulator.account import RunOutcome, TimeUse
from simulator.crew import Crew
from simulator.engine import Simulation
from simulator.fleet import parsed
from simulator.runs import mean_of

NODES = 24


def outcome(shown: int, seed: int, days: float, **fleet: Any) -> RunOutcome:
    described = {"nodes": NODES, "spares": 4, "faults": {"per1000NodeDays": 400}} | fleet
    return Simulation(parsed(described, "test"), seed, shown).run(days)


def told(found: RunOutcome) -> dict[str, Any]:
    return {
        "rounds": found.rounds,
        "interruptions": found.interruptions,
        "faults": dict(found.faults),
        "cordons": found.cordons,
        "ended": found.ended,
        "seconds": {part: round(found.account.seconds[part], 3) for part in TimeUse},
    }


@pytest.fixture
def unsettled(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Crew, "settle", lambda self: None)


@settings(max_examples=6, suppress_health_check=[HealthCheck.function_scoped_fixture], database=None)
@given(
    seed=st.integers(0, 10_000),
    standby=st.sampled_from([0, 1]),
    least=st.sampled_from([None, 16, 22]),
    unit=st.sampled_from([1, 2]),
    check=st.booleans(),
)
def test_a_job_of_which_half_is_hidden_has_the_same_worlds(
    unsettled: None, seed: int, standby: int, least: int | None, unit: int, check: bool
) -> None:
    policies = {"standby": standby, "nodeCheckAfter": check, "restartCount": 1000}
    fleet = {"policies": policies, "minNodes": least, "nodeUnit": unit}
    whole = outcome(NODES, seed, 0.5, **fleet)
    half = outcome(12, seed, 0.5, **fleet)
    assert told(half) == told(whole)


@pytest.mark.parametrize("seed", range(2))
def test_more_are_shown_when_something_befalls_many(unsettled: None, seed: int) -> None:
    kinds = {"process": 0, "hang": 0, "device": 0, "node": 0, "switch": 1}
    fleet = {"faults": {"per1000NodeDays": 100, "kinds": kinds}, "minNodes": 2, "spares": 0, "rackNodes": 12}
    half = outcome(4, seed, 1.0, **fleet)
    whole = outcome(NODES, seed, 1.0, **fleet)
    assert told(half) == told(whole)
    assert half.faults["switch"]


def test_what_slots_forget_changes_nothing_in_the_mean() -> None:
    fleet = {"policies": {"standby": 2, "restartCount": 1000}}
    whole = mean_of([outcome(NODES, seed, 0.7, **fleet).goodput for seed in range(6)])
    half = mean_of([outcome(12, seed, 0.7, **fleet).goodput for seed in range(100, 106)])
    assert abs(half.value - whole.value) <= half.half_width + whole.half_width
