"""The machine of lists and watches under a false clock: what is asked next, and when."""

from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from controller.errors import (
    ApiError,
    Forbidden,
    Gone,
    NotFound,
    PageTooLarge,
    SilentWatch,
    TimedOut,
    Unavailable,
)
from controller.watch.reflector import Reflector, WatchTiming

DOWN, GONE = Unavailable("down"), Gone(410, "Expired", "too old")
FORBIDDEN, NO_CRD = Forbidden(403, "Forbidden", "no"), NotFound(404, "NotFound", "no CRD")
TIMING = WatchTiming()


def play(answer, seconds=660.0, reflector=None):
    """Ask by a false clock; return the kind and the time of each ask.

    `answer` returns an error, or how long a watch lives, which brings no event.
    """
    reflector, now, asks = reflector or Reflector(TIMING), 0.0, []
    while now < seconds:
        kind = "list" if reflector.version is None else "watch"
        asks.append((kind, now))
        assert len(asks) < 10_000, "a tight loop"
        answered = answer(kind, now)
        if isinstance(answered, ApiError):
            now += reflector.failed(answered, now).wait_seconds
        elif kind == "list":
            reflector.page_arrived(0, 0, None, "1")
        else:
            reflector.opened(now)
            now += answered
            now += reflector.ended(now)
    return asks


def after_a_minute(error):
    """The first watch lives for a minute; then none is opened any more."""
    return lambda kind, now: 60.0 if kind == "list" or now == 0 else error


@pytest.mark.parametrize(
    ("answer", "lists", "watches"),
    [
        (lambda kind, now: 0.0, [1], range(90)),
        (after_a_minute(DOWN), [1], range(300, 620)),
        (after_a_minute(FORBIDDEN), [1], range(40, 90)),
        (after_a_minute(Unavailable("busy", status=503, retry_after_seconds=10)), [1], range(50, 65)),
        (after_a_minute(Unavailable("busy", status=503, retry_after_seconds=3600)), [1], range(30, 620)),
        (after_a_minute(GONE), range(40, 90), range(91)),
        (after_a_minute(NO_CRD), range(40, 90), range(91)),
    ],
    ids=["ended", "down", "forbidden", "after 10 s", "after an hour", "too old", "no CRD"],
)
def test_what_fails_again_and_again_is_tried_again_at_growing_intervals(answer, lists, watches):
    kinds = [kind for kind, _ in play(answer)]
    assert kinds.count("list") in lists and kinds.count("watch") in watches


def test_a_new_leaders_list_does_not_wait_for_what_failed_before():
    reflector = Reflector(TIMING)
    play(after_a_minute(FORBIDDEN), reflector=reflector)
    reflector.start()
    assert len(play(lambda kind, now: FORBIDDEN, 3.0, reflector)) > 3


def test_a_watch_that_lived_is_opened_again_at_once_after_failures():
    asks = play(lambda kind, now: 60.0 if now < 60 or now >= 100 else DOWN, 1_000.0)
    lived = [later - earlier for (_, earlier), (_, later) in pairwise(asks) if earlier >= 100]
    assert lived and lived == pytest.approx([60.0] * len(lived))


def test_a_watch_that_was_left_for_a_list_of_our_own_makes_no_later_failure_the_first():
    reflector = Reflector(TIMING)
    for _ in range(6):
        reflector.failed(FORBIDDEN, 0.0)
    reflector.page_arrived(0, 0, None, "1")
    reflector.opened(0.0)
    reflector.list_all()
    reflector.page_arrived(0, 0, None, "2")
    assert reflector.failed(FORBIDDEN, 1_000.0).wait_seconds > 3


ANSWERS = st.sampled_from(
    [
        *(DOWN, GONE, FORBIDDEN, NO_CRD, TimedOut("late"), PageTooLarge(4, 1), SilentWatch("silent")),
        *("last", "more", "opened", "event", "ended"),
    ]
)


@given(st.lists(ANSWERS, max_size=60))
def test_whatever_is_answered_no_ask_follows_at_once_unless_something_came_or_another_thing_is_asked(answers):
    """And no wait exceeds the cap; 410 and 404 of a watch lead to a list; versions only grow."""
    reflector, now, is_open, has_news = Reflector(TIMING), 0.0, False, False
    for answer in answers:
        is_listing, page, wait, brought = reflector.version is None, reflector.page, None, True
        if isinstance(answer, ApiError):
            wait = reflector.failed(answer, now).wait_seconds
            brought = has_news and reflector.version is not None
            if not is_listing:
                assert (reflector.version is None) == isinstance(answer, Gone | NotFound)
            is_open = has_news = False
        elif is_listing and answer in ("last", "more"):
            assert reflector.page_arrived(1, 1, "next" if answer == "more" else None, "7") == (
                answer == "last"
            )
        elif not is_listing and answer == "opened" and not is_open:
            reflector.opened(now)
            is_open = True
        elif is_open and answer == "event":
            reflector.event_arrived(None)
            has_news = True
            assert reflector.version == "7"
        elif is_open and answer == "ended":
            wait, brought, is_open, has_news = reflector.ended(now), has_news, False, False
        else:
            continue
        assert wait is None or 0 <= wait <= TIMING.backoff_cap_seconds
        if wait == 0 and not brought:
            assert is_listing and reflector.page != page
        now += wait or 0.0
