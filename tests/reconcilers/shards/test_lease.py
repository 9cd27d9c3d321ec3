"""Leases of shard sets, whatever happens between any two writes."""

from __future__ import annotations

import random
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pydantic import TypeAdapter

from agent.shards.holding import Holding
from crds.agent_report import MAX_SHARDS_TEXT
from crds.intervals import count, minus, of_numbers, to_text, union
from crds.leases import Lease
from crds.shard_set import SetDefinition
from crds.shard_set_status import ShardSetStatus
from reconcilers.shards.lease import lease
from reconcilers.shards.messages import ending
from reconcilers.shards.sets import (
    MAX_SCATTERED,
    MAX_WAITING,
    PullReport,
    SetState,
    ShardPullers,
    Tried,
    of_status,
    report_of,
)
from tests.counting import calls
from tests.reconcilers.shards.play import Act, Cluster

NOW = datetime(2026, 11, 23, tzinfo=UTC)


def read_back(known: SetState) -> SetState:
    """As the API server gives it back."""
    return of_status(TypeAdapter(ShardSetStatus).validate_python(known.to_status().to_wire()))


@settings(max_examples=10, deadline=None)
@given(
    workers=st.integers(1, 4), size=st.integers(1, 60), acts=st.integers(0, 300), seed=st.integers(0, 2**32)
)
def test_what_goes_back_with_a_checkpoint_is_in_the_model_once(
    workers: int, size: int, acts: int, seed: int
) -> None:
    """`done` is here what a model has learnt: a loss takes it back to the checkpoint, with the set."""
    definition = SetDefinition("train", 0, size, "", 3, 0)
    cluster = Cluster(1, definition, frozenset(), seed, workers=workers)
    usual = [Act.WORK, Act.REPORT, Act.SEE, Act.LOOK, Act.KILLED_BEFORE_ITS_WRITE, Act.LEADS_NO_MORE]
    usual += [Act.LATE_WRITE, Act.CRASH_IN_PLACE]
    for _ in range(acts):
        match cluster.choose.choices(["save", "loss", "usual"], [5, 3, 100])[0]:
            case "save" if all(w.waits_for <= w.restoration for w in cluster.workers):
                cluster.saved = list(cluster.done)
            case "loss":
                cluster.go_back(cluster.choose.choice(cluster.workers))
            case _:
                cluster.act(cluster.choose.choices(usual, [act.value for act in usual])[0])
    cluster.quiet()
    assert sorted(cluster.done) == list(range(size))


def test_a_failed_element_is_tried_by_others_first_and_then_named() -> None:
    cluster = Cluster(1, SetDefinition("train", 0, 50, "", 2, 1), frozenset({17}), 4, workers=3)
    cluster.quiet()
    (over,) = cluster.sets
    assert 17 in {e for start, end in over.failed for e in range(start, end)}
    assert len(set(cluster.failures[17])) == 3, "each of the three has tried it"
    assert over.reason == "element 17 is bad"


def test_what_failed_is_not_leased_again_before_its_worker_has_heard_that_it_counts() -> None:
    """Two looks at one report: an agent that saw the second alone took the new lease for failed as well."""
    definition = SetDefinition("train", 0, 1, "", 3, 0)
    alone, tries = Holding(definition), 0
    sets: tuple[SetState, ...] = ()
    for _ in range(20):
        alone.follow(next((held for each in sets for held in each.leases), None))
        if (part := alone.take(1)) is not None:
            tries += 1
            alone.fail(part, "bad")
        voice = report_of(0, 1, alone.to_status(MAX_SHARDS_TEXT))
        for _ in range(2):
            sets = lease(sets, ShardPullers({0: 1}, [voice], 1), NOW)
    assert sets[0].failed == ((0, 1),) and tries == 4


@pytest.mark.parametrize("place", ["waiting", "failed", "tried"])
def test_a_set_that_is_too_scattered_fits_its_status_and_fails_the_job(place: str) -> None:
    """The set is as large as one may be, so that the text is as long as it gets."""
    size, apart = 2**53 - 1, random.Random(1)
    ends = sorted({*apart.sample(range(size), 2 * MAX_WAITING + 10_000)})
    scattered = tuple(zip(ends[::2], ends[1::2], strict=True))
    assert len(scattered) > MAX_WAITING
    known = SetState(SetDefinition("train", 0, size, "", 3, size - 1), ())
    value: Any = (
        (Tried((0, 1), scattered), Tried((1,), ((size - 1, size),))) if place == "tried" else scattered
    )
    known = replace(known, **{place: value})
    found = read_back(known)
    assert found.scattered == known.scattered != ""
    left = union(found.waiting, found.failed, *(each.elements for each in found.tried))
    assert not minus(scattered, left), "what is not named is not done again"
    assert read_back(found) == found
    assert "separate places" in ending([read_back(known)])


def test_leases_that_are_too_scattered_for_the_status_go_back_and_lose_nothing() -> None:
    """A hundred workers have done all but a thousand elements here and there of what they hold."""
    workers, each, apart = 100, 10**9, random.Random(1)
    definition = SetDefinition("train", 0, workers * each, "", 3, 0)
    held = tuple(Lease(w, 0, w + 1, ((w * each, (w + 1) * each),)) for w in range(workers))
    left = [{w * each, *(w * each + n for n in apart.sample(range(each), 1_000))} for w in range(workers)]
    voices = [
        PullReport(w, 0, definition, w + 1, of_numbers(sorted(left[w])), (), "", True) for w in range(workers)
    ]
    known = SetState(definition, (), held, again=(Tried((1,), ((0, 1),)),), last_lease=workers)
    (found,) = lease([known], ShardPullers(dict.fromkeys(range(workers), 0), voices, workers), NOW)
    assert (found.leases, found.again) == ((), ())
    assert found.tried == (Tried((1,), ((0, 1),)),)
    assert found.waiting == minus(of_numbers(sorted(set().union(*left))), ((0, 1),))


def scattered_set(histories: int, workers: int) -> tuple[SetState, ShardPullers]:
    """As many ranges wait as may, each worker holds eight and asks for more, and of one it says that it failed.

    Args:
        histories: workers on which a lease of another has failed before.
    """
    definition = SetDefinition("train", 0, 10**6, "", 16, 10**6)
    apart = [(at, at + 1) for at in range(0, 2 * MAX_WAITING + 16 * workers + 2 * histories, 2)]
    failed, leased, waiting = apart[:histories], apart[histories:][: 8 * workers], apart[-MAX_WAITING:]
    leases = tuple(Lease(w, 0, w + 1, tuple(leased[8 * w : 8 * w + 8])) for w in range(workers))
    again = tuple(Tried((w,), (each,)) for w, each in enumerate(failed))
    voices = [
        PullReport(each.worker, 0, definition, each.number, each.elements[1:], each.elements[:1], wants=True)
        for each in leases
    ]
    known = SetState(definition, tuple(waiting), leases, again=again, last_lease=workers)
    return known, ShardPullers(dict.fromkeys(range(workers), 0), voices, workers)


def test_a_deal_does_not_walk_through_all_that_waits_or_failed_for_each_worker() -> None:
    known, crew = scattered_set(64, workers=150)
    walked = calls(lambda: lease([known], crew, NOW))
    assert walked < 20 * (MAX_WAITING + 64 * 150)


def test_a_status_names_thousands_of_leased_elements_that_failed_elsewhere() -> None:
    """Each has failed on sixteen workers of replica groups, and no two on the same."""
    far = 2**52
    again = tuple(
        Tried(tuple(range(10**7 + 16 * n, 10**7 + 16 * n + 16)), ((far + 2 * n, far + 2 * n + 1),))
        for n in range(MAX_SCATTERED)
    )
    held = Lease(0, 0, 1, union(*(each.elements for each in again)))
    known = SetState(SetDefinition("train", 0, 2**53 - 1, "", 16, 0), (), (held,), again=again, last_lease=1)
    (found,) = lease([known], ShardPullers({0: 0}, (), 1), NOW)
    assert union(*(each.elements for each in found.again)) == held.elements
    assert {len(each.workers) for each in found.again} == {16}
    assert read_back(found) == found


def test_a_status_with_more_ranges_than_are_written_is_refused() -> None:
    known = SetState(SetDefinition("train", 0, 2**20, "", 3, 0), ((0, 1),))
    many = of_numbers(range(0, 2**19, 2))
    for text in ({"rest": to_text(many)}, {"failed_elements": to_text(many)}):
        with pytest.raises(
            ValueError, match=r"the status of the shard set 'train' cannot be read: .* too long"
        ):
            of_status(replace(known.to_status(), **text))


def test_a_lease_is_work_for_three_seconds_but_no_more_than_an_even_share() -> None:
    def granted(waiting: int) -> int:
        """Elements, where 10 workers have done 100,000 in 100 s: each does 300 in three seconds."""
        known = SetState(
            SetDefinition("train", 0, 100_000 + waiting, "", 3, 0), ((100_000, 100_000 + waiting),)
        )
        voices = [PullReport(i, 1, known.definition, 0, (), (), wants=i == 0) for i in range(10)]
        (after,) = lease(
            (replace(known, started_at=NOW),),
            ShardPullers(dict.fromkeys(range(10), 1), voices, 10),
            NOW + timedelta(seconds=100),
        )
        return count(after.leases[0].elements)

    assert [granted(waiting) for waiting in (100_000, 4_000, 1_000, 3)] == [5_000, 300, 100, 1]
