"""How long the agent waits before it asks the API server again."""

from __future__ import annotations

import logging
import random
import statistics
import threading
from itertools import accumulate

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agent.kube.retry import MISSING_WAIT_SECONDS, THROTTLED_SPREAD_SECONDS, Warnings, retrying
from controller.errors import MOST_RETRY_AFTER_SECONDS, ApiError, Unavailable, error_of

USUAL_SECONDS = 2.0


class Waits(threading.Event):
    """A stop event that ends the retries after so many waits, none of which takes time."""

    def __init__(self, most: int) -> None:
        super().__init__()
        self.most = most
        self.seconds: list[float] = []

    def wait(self, timeout: float | None = None) -> bool:
        self.seconds.append(timeout or 0.0)
        if len(self.seconds) == self.most:
            self.set()
        return True


def waits_after(error: Exception, attempts: int = 12) -> list[float]:
    def fail() -> None:
        raise error

    stop = Waits(attempts)
    with pytest.raises(type(error)):
        retrying(stop, Warnings(logging.getLogger(), "try"), max_wait_seconds=USUAL_SECONDS)(fail)
    return stop.seconds


def throttled(retry_after: str) -> ApiError:
    return error_of(429, b"", retry_after)


@given(st.sampled_from([429, 503]), st.integers(1, 10**8))
def test_a_server_that_names_a_wait_is_never_asked_sooner_and_always_again(status: int, seconds: int) -> None:
    waits = waits_after(error_of(status, b"", str(seconds)))
    asked_for = min(seconds, MOST_RETRY_AFTER_SECONDS)
    assert all(asked_for <= wait <= asked_for + THROTTLED_SPREAD_SECONDS for wait in waits)


def test_ten_thousand_agents_that_are_throttled_do_not_come_back_at_once(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """With no server that serves any of them: at most so many requests a second. One stands for 25."""
    monkeypatch.setattr("tenacity.wait.random", random.Random(1))
    per_second = [0] * 60
    for _ in range(400):
        for at in accumulate(waits_after(throttled("1"), attempts=20)):
            if at < len(per_second):
                per_second[int(at)] += 25
    assert max(per_second[20:]) < 2_500
    assert statistics.mean(per_second[20:]) < 2_000


@given(st.sampled_from(["", "0", "-3", "soon", "Wed, 21 Oct 2026 07:28:00 GMT", "9" * 40, "٣"]))
def test_a_wait_that_is_no_number_of_seconds_is_none(text: str) -> None:
    assert all(wait <= USUAL_SECONDS for wait in waits_after(error_of(503, b"", text)))


def test_an_object_that_is_not_there_is_asked_for_ever_more_rarely_but_again_and_again() -> None:
    many = [waits_after(error_of(404, b""), attempts=30) for _ in range(50)]
    assert all(wait <= MISSING_WAIT_SECONDS for waits in many for wait in waits)
    asked = [sum(sum(waits[: n + 1]) < 25.0 for n in range(len(waits))) for waits in many]
    assert statistics.mean(asked) < 14, "of a deleted job, in the grace period of its Pods"


def test_other_failures_wait_as_before() -> None:
    for error in (Unavailable("no answer"), error_of(500, b""), error_of(403, b""), ValueError()):
        assert all(wait <= USUAL_SECONDS for wait in waits_after(error))
