"""Replica groups: the controller's membership decides who trains, and the table how long the others stand still."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from crds.grouping import patience_seconds
from simulator.account import RunOutcome, TimeUse
from simulator.engine import Simulation
from simulator.fleet import parsed
from simulator.times import Times

ONLY = dict.fromkeys(("process", "hang", "device", "node", "switch"), 0)


def simulation(kind: str, rate: float = 20.0, seed: int = 0, **more: Any) -> Simulation:
    """Return eight groups of eight nodes, of which only one kind of failure happens."""
    policies = {"groupNodes": 8, "restartCount": 1000, "hangTimeoutSeconds": 60} | more.pop("policies", {})
    faults = {"per1000NodeDays": rate, "kinds": {**ONLY, kind: 1}}
    return Simulation(
        parsed({"nodes": 64, "spares": 4, "faults": faults, "policies": policies} | more, "test"), seed
    )


def stall_of(outcome: RunOutcome) -> float:
    """Return for how long all other groups together stood still at each interruption, per group."""
    return outcome.account.seconds[TimeUse.STALLED] / outcome.interruptions / (7 / 8)


def test_the_death_of_a_process_costs_the_others_the_measured_stalls_alone() -> None:
    outcome = simulation("process").run(4.0)
    times = Times()
    # The group that is back shares the pause of its own return.
    expected = times.group_stall_seconds + times.group_return_seconds * 8 / 7
    assert outcome.interruptions >= 4
    assert stall_of(outcome) == pytest.approx(expected, rel=0.01)


@pytest.mark.parametrize("timeout", [12, 60])
def test_the_others_wait_for_a_silent_node_until_the_controller_knows_or_their_patience_ends(
    timeout: int,
) -> None:
    outcome = simulation("node", policies={"heartbeatTimeoutSeconds": timeout}).run(4.0)
    times = Times()
    seconds = min(timeout, patience_seconds(times.step_seconds)) - times.detect_seconds
    seconds += times.group_stall_seconds + times.group_return_seconds * 8 / 7
    assert outcome.interruptions >= 3
    assert stall_of(outcome) == pytest.approx(seconds, rel=0.01)


@pytest.mark.parametrize("timeout", [10, 60, 600])
def test_the_others_wait_for_a_hung_group_until_its_time_out_or_their_patience_ends(timeout: int) -> None:
    outcome = simulation("hang", policies={"hangTimeoutSeconds": timeout}).run(4.0)
    assert outcome.interruptions >= 4
    waited = min(timeout, patience_seconds(Times().step_seconds))
    assert stall_of(outcome) == pytest.approx(waited + 0.4, abs=0.5)


@pytest.mark.parametrize("kind", ["hang", "process"])
def test_each_group_that_leaves_and_comes_back_is_two_versions(kind: str) -> None:
    run = simulation(kind, rate=200.0)
    outcome = run.run(3.0)
    groups = run.state.groups
    assert groups is not None
    assert groups.membership.version == 1 + 2 * outcome.interruptions
    assert (len(groups.membership.groups), groups.membership.late) == (8, [])


@settings(max_examples=10, deadline=None, database=None)
@given(seed=st.integers(0, 10_000), kind=st.sampled_from([*ONLY]), rate=st.sampled_from([50.0, 800.0]))
def test_rounds_and_versions_of_the_membership_only_rise(seed: int, kind: str, rate: float) -> None:
    run = simulation(kind, rate, seed)
    seen: dict[int, int] = {}
    newest = 0
    look = run.state.look_at_group

    def watch(number: int, group: Any) -> None:
        nonlocal newest
        look(number, group)
        assert run.state.groups is not None
        membership = run.state.groups.membership
        assert membership.version >= newest
        newest = membership.version
        for place in membership.groups:
            assert place.round >= seen.get(place.index, 0)
            seen[place.index] = place.round

    run.state.look_at_group = watch  # type: ignore[method-assign]
    run.run(0.5)


def test_training_goes_on_from_a_checkpoint_where_all_groups_died_at_once() -> None:
    lonely = {"nodes": 16, "rackNodes": 16, "policies": {"groupNodes": 8, "memoryCheckpointSeconds": None}}
    outcome = simulation("switch", rate=100.0, **lonely).run(2.0)
    assert outcome.interruptions
    assert outcome.account.lost > 0


def test_no_step_is_made_again_while_one_group_lives() -> None:
    outcome = simulation("process", rate=200.0).run(3.0)
    assert outcome.interruptions > 20 and outcome.account.lost == 0


def test_the_job_has_failed_when_all_groups_have() -> None:
    outcome = simulation("process", rate=50_000.0, policies={"restartCount": 0}).run(1.0)
    assert "GroupsFailed" in outcome.ended
    assert outcome.account.seconds[TimeUse.ENDED] > 0
