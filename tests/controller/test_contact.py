from itertools import pairwise

from hypothesis import given
from hypothesis import strategies as st

from controller.contact import Contact


class Clock:
    def __init__(self):
        self.seconds = 100.0

    def __call__(self):
        return self.seconds


def contact_with_clock():
    clock = Clock()
    return Contact(gap_seconds=5, now=clock), clock


def test_contact_reads_as_lost_before_the_first_answer_after_our_own_stop():
    """A reconcile may run first when this process is continued; it must not judge by old contact."""
    contact, clock = contact_with_clock()
    contact.answered()
    clock.seconds += 40
    assert contact.since == 140
    clock.seconds += 1
    assert contact.since == 141


@given(st.lists(st.floats(0.01, 20), min_size=1, max_size=50))
def test_no_gap_lies_inside_the_contact(waits):
    contact, clock = contact_with_clock()
    answers = []
    for wait in waits:
        contact.answered()
        answers.append(clock.seconds)
        clock.seconds += wait
    inside = [a for a in answers if a >= contact.since] + [clock.seconds]
    assert all(later - earlier <= 5 for earlier, later in pairwise(inside))
