"""What one decision about growth remembers."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from crds.job_spec import Opportunistic
from crds.job_status import MAX_WHY_NOT_MORE, GrowthStatus
from reconcilers.autoscaling.opportunity import Room, next_step, reset_growth, with_base
from tests.reconcilers.build import NOW, later

POLICY = Opportunistic(priority_class_name="idle", probe_seconds=60)


@given(
    before=st.integers(1, 99),
    newcomers=st.integers(1, 9),
    lost=st.integers(1, 9),
    restart=st.integers(0, 600),
    trained=st.integers(1, 9_000),
    earlier=st.integers(0, 2_000),
)
def test_a_growth_is_in_vain_by_what_it_gave_and_not_by_when_its_gain_was_known(
    before: int, newcomers: int, lost: int, restart: int, trained: int, earlier: int
) -> None:
    world, lost = before + newcomers, min(lost, newcomers)
    grows = GrowthStatus(base=before, replicas=world, grown_from=before, in_vain=earlier)
    stands = Room(
        count=world,
        most=world,
        unit=1,
        requested_seconds=float(trained),
        is_steady=True,
        world=world,
        trained_seconds=float(trained),
        is_measured=True,
        efficiency=1.0,
        restart_seconds=float(restart),
    )
    judged = next_step(POLICY, grows, replace(stands, trained_seconds=0.0), NOW).known
    assert (judged.grown_from, judged.in_vain) == (None, earlier), (
        "that it is worth its workers pays nothing yet"
    )
    taken = replace(stands, lost=lost)
    steps = [next_step(POLICY, known, taken, NOW) for known in (grows, judged)]
    paid = trained * newcomers >= restart * world
    assert {step.known.in_vain for step in steps} == {0 if paid else earlier + 1}
    assert {step.known.not_before for step in steps} == {later(min(60 * 2 ** steps[0].known.in_vain, 3_600))}
    lasting = next_step(POLICY, judged, stands, NOW).known
    assert (lasting.unpaid_from, lasting.in_vain) == ((None, 0) if paid else (before, earlier))


def test_a_job_without_a_world_has_paid_for_nothing() -> None:
    held = Room(count=3, most=3, unit=1, requested_seconds=9.0, is_steady=False)
    unpaid = GrowthStatus(base=2, replicas=3, unpaid_from=2, in_vain=3)
    assert next_step(POLICY, unpaid, held, NOW).known == unpaid


def test_a_count_that_is_set_back_is_no_news_of_what_brought_too_little() -> None:
    known = GrowthStatus(
        base=2, replicas=4, ceiling=4, not_before=later(3_000), reason="add 5 % of a linear gain"
    )
    back = reset_growth(POLICY, known, count=2, base=2, now=NOW)
    assert (back.base, back.not_before, back.ceiling, back.in_vain) == (2, later(3_000), None, 0)
    other = reset_growth(POLICY, known, count=3, base=3, now=NOW)
    assert (other.base, other.not_before) == (3, later(60)), "another count is"


def test_who_asks_for_more_or_takes_nothing_that_was_extra_begins_anew_at_once() -> None:
    grown = GrowthStatus(base=2, unpaid_from=2, in_vain=3, replicas=4)
    for count in (4, 5):
        assert reset_growth(POLICY, grown, count=count, base=count, now=NOW) == GrowthStatus(
            base=count, replicas=count
        )
    shrunk = GrowthStatus(base=2, unpaid_from=2, in_vain=3, replicas=2)
    assert reset_growth(POLICY, shrunk, count=1, base=1, now=NOW) == GrowthStatus(base=1, replicas=1)


def test_a_job_that_is_asked_for_all_that_it_may_have_says_that_it_cannot_grow() -> None:
    full = Room(count=4, most=4, unit=1, requested_seconds=9.0, is_steady=True, world=4)
    assert next_step(POLICY, GrowthStatus(base=4, replicas=4), full, NOW).known.reason == (
        "4 workers are requested, and maxReplicas leaves no room for 1 more"
    )
    assert next_step(POLICY, GrowthStatus(base=3, replicas=4), full, NOW).known.reason == "", "it has grown"


@given(
    st.builds(
        GrowthStatus, base=st.integers(0, 40), replicas=st.just(0), ceiling=st.none() | st.integers(0, 40)
    ),
    st.integers(0, 40),
    st.integers(1, 8),
    st.data(),
)
def test_whatever_growth_asks_for_is_in_the_jobs_bounds_however_these_were_edited(
    known: GrowthStatus, needed: int, unit: int, data: st.DataObject
) -> None:
    needed *= unit
    bound = with_base(known, needed, unit)
    count = bound.base + unit * data.draw(st.integers(0, 5))
    parts = ("stuck", "lost", "exhausted", "on_their_way", "starting")
    extra: dict[str, Any] = data.draw(
        st.lists(st.sampled_from(parts), max_size=count - bound.base).map(Counter)
    )
    room = Room(count=count, most=48 // unit * unit, unit=unit, requested_seconds=1e3, is_steady=True)
    room = replace(room, **extra)
    room = replace(room, pod_refused="exceeded quota, " * 60)
    step = next_step(POLICY, bound, room, NOW)
    asked = step.count
    assert len(step.known.reason) <= MAX_WHY_NOT_MORE
    assert asked % unit == 0 and asked >= needed
    assert with_base(bound, needed, unit) == bound
