"""A day of random load in virtual time: free room is used, and nobody flaps."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from crds.job_spec import Opportunistic
from tests.reconcilers.autoscaling.day import PAUSE_SECONDS, READY_SECONDS, Day, random_load

HOUR = 3_600
POLICY = Opportunistic(priority_class_name="idle")


@pytest.mark.parametrize(("minutes", "seed"), [(15, 0), (5, 1)])
def test_in_a_day_of_random_load_free_nodes_are_used_and_few_restarts_are_useless(
    minutes: int, seed: int
) -> None:
    """docs/capacity.md has the figures of more days."""
    day = Day(base=8, nodes=8, policy=POLICY)
    day.live(24 * HOUR, random_load(seed, 8, 60 * minutes))
    used, useless = day.used_seconds / day.free_seconds, day.useless
    print(f"every {minutes} min: {used:.1%} used, {day.restarts} restarts, {useless} useless")
    assert day.free_seconds > 24 * HOUR
    assert used >= 0.95
    assert useless <= 24


def test_load_that_takes_every_node_back_at_once_costs_ever_fewer_restarts() -> None:
    """Somebody takes all as soon as the world has grown, for hours; once that is over, it has the room."""
    day = Day(base=8, nodes=4, policy=POLICY)
    day.live(2 * HOUR, lambda _: 4 if day.world > 8 else 0)
    assert day.useless <= 7
    day.live(4 * HOUR, lambda _: 4 if day.world > 8 else 0)
    assert day.useless <= 7 + 4, "one an hour"
    assert day.restarts == 2 * day.useless
    day.live(2 * HOUR, lambda _: 0)
    assert day.world == 8 + 4


def test_a_growth_that_was_worth_its_workers_and_taken_before_it_paid_is_one_in_vain() -> None:
    """Steps are quick: its gain is known 10 s after its restart, which pays after 20 s."""
    day = Day(base=8, nodes=4, policy=POLICY, speed=lambda _: 2.0)
    day.live(2 * HOUR, lambda now: 4 if day.world > 8 and now > day.formed + PAUSE_SECONDS + 12 else 0)
    assert 2 <= day.useless == len(day.growths) <= 7


def test_a_job_that_does_not_scale_tries_once_an_hour() -> None:
    day = Day(base=4, nodes=4, policy=POLICY, speed=lambda workers: 4 / workers)
    day.live(3_000, lambda _: 0)
    assert day.restarts == 2, "up, and back"
    assert day.count == 4
    assert day.known.reason == "8 workers instead of 4 add 0% of a linear gain, less than minEfficiency 60%"
    day.live(3_000, lambda _: 0)
    assert day.restarts == 4


@given(freed=st.integers(30, 900), probe=st.integers(2, 120))
@settings(max_examples=8, deadline=None)
def test_nodes_that_are_freed_are_had_within_half_a_probe(freed: int, probe: int) -> None:
    policy = POLICY.model_copy(update={"probe_seconds": probe})
    day = Day(base=4, nodes=4, policy=policy)
    day.live(60 + freed, lambda _: 4)
    before = day.now
    while sum(each.placed is not None for each in day.extra) < 4:
        day.live(1, lambda _: 0)
        assert day.now - before <= probe / 2 + 10
    day.live(READY_SECONDS + 1, lambda _: 0)
    assert (day.world, day.restarts) == (8, 1), "one restart for all of them"


@given(st.data())
@settings(max_examples=8, deadline=None)
def test_whatever_the_load_is_bounds_hold_and_quiet_ends_with_all_the_room(data: st.DataObject) -> None:
    nodes = data.draw(st.integers(1, 6))
    policy = POLICY.model_copy(update={"probe_seconds": data.draw(st.integers(1, 90))})
    changes = data.draw(st.lists(st.tuples(st.integers(1, 300), st.integers(0, nodes)), max_size=8))
    day = Day(base=data.draw(st.integers(1, 8)), nodes=nodes, policy=policy)
    for seconds, load in changes:
        day.live(seconds, lambda _, load=load: load)  # type: ignore[misc]
    day.live(2 * HOUR, lambda _: 0)
    assert day.world == day.count == day.base + nodes
