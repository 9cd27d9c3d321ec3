"""What is offered to the peer, and when."""

from __future__ import annotations

import itertools

import pytest

from agent.slots.format import Mark
from agent.slots.replication import LONGEST_RETRY_SECONDS, RETRY_SECONDS, WARN_SECONDS, ReplicaOffers


def marks(step: int) -> list[Mark]:
    return [Mark(1, step, rank, 2) for rank in range(2)]


def test_what_a_peer_has_is_offered_to_it_no_more_and_to_another_again() -> None:
    course = ReplicaOffers()
    assert course.begin("peer", 1, marks(10)) == marks(10)
    assert course.end(True, 0.0, 1.0) == 0.0 and course.step == 10
    assert course.begin("peer", 1, marks(10)) == []
    assert course.begin("peer", 1, [marks(11)[0], marks(10)[1]]) == marks(11)[:1]
    assert course.begin("another", 2, marks(10)) == marks(10)
    assert course.begin("peer", 3, []) == []


def test_a_peer_that_has_no_copy_for_long_is_told_of_once_and_again_after_one_that_came(
    caplog: pytest.LogCaptureFixture,
) -> None:
    """As where a copy takes longer than two saves: what was offered is written over meanwhile."""
    course = ReplicaOffers()
    for step, has_come in enumerate([False] * 5 + [True] + [False] * 3, 10):
        course.begin("peer", 1, marks(step))
        course.end(has_come, step * WARN_SECONDS, step * WARN_SECONDS)
    assert [record.getMessage()[:55] for record in caplog.records] == [
        "no checkpoint from step 10 on has come to the memory of",
        "no checkpoint from step 16 on has come to the memory of",
    ]


def test_copies_that_never_come_are_tried_for_less_and_less_often_until_the_turn_changes() -> None:
    """Each one that is written over takes half of the network for nothing."""
    course, step = ReplicaOffers(), itertools.count()

    def fail(seconds: float, turn: int = 1) -> float:
        course.begin("peer", turn, marks(at := next(step)))
        return course.end(False, at - seconds, float(at))

    assert {fail(0.01) for _ in range(20)} == {RETRY_SECONDS}, "what is refused at once costs nothing"
    pauses = [fail(5.0) for _ in range(20)]
    assert pauses[:4] == [10, 20, 40, LONGEST_RETRY_SECONDS] and set(pauses[4:]) == {LONGEST_RETRY_SECONDS}
    assert fail(300.0) == 300
    assert fail(5.0, turn=2) == 10, "another round, or the processes have left"
