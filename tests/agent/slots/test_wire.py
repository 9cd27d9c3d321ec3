"""A slot server that has much to do is asked again, and one that says no is not."""

from __future__ import annotations

import contextlib
import itertools
import json
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agent.connection.handshake import RefusedError
from agent.slots import wire
from agent.slots.format import Mark
from agent.slots.wire import SlotRequest, SlotVerb

MARK = Mark(7, 120, 0, 8)


class Source:
    def __init__(self, nbytes: int = 4) -> None:
        self.nbytes = nbytes

    def fill(self, target: memoryview) -> None:
        target[:] = b"data"


class Served:
    """A server's answers, one for each time it is asked; the last again and again."""

    def __init__(self, *answers: Source | OSError) -> None:
        self._answers, self.asked = answers, 0

    @contextmanager
    def __call__(self, *_: Any) -> Iterator[Source]:
        answer = self._answers[min(self.asked, len(self._answers) - 1)]
        self.asked += 1
        if isinstance(answer, OSError):
            raise answer
        yield answer

    def read(self, monkeypatch: pytest.MonkeyPatch, is_there: bool = True, stop: int | None = 4) -> bytearray:
        monkeypatch.setattr(wire, "receive", self)
        monkeypatch.setattr(wire, "is_there", lambda _address: is_there)
        return wire.read("10.0.0.1:1", b"", MARK, 0, stop, itertools.count().__next__)


def test_time_outs_of_a_server_that_is_there_are_waited_out(monkeypatch: pytest.MonkeyPatch) -> None:
    assert Served(*[TimeoutError("timed out")] * 5, Source()).read(monkeypatch) == b"data"


@pytest.mark.parametrize(
    ("error", "is_there"), [(RefusedError("it is not here"), True), (TimeoutError("timed out"), False)]
)
def test_a_refusal_and_a_server_that_is_gone_are_told_at_once(
    monkeypatch: pytest.MonkeyPatch, error: OSError, is_there: bool
) -> None:
    served = Served(error)
    with pytest.raises(RefusedError, match=r"10\.0\.0\.1:1: "):
        served.read(monkeypatch, is_there)
    assert served.asked == 1


def test_no_memory_is_taken_for_as_many_bytes_as_a_server_names(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(RefusedError, match=r"10\.0\.0\.1:1: it has 4,611,\S+ bytes of a header and sums"):
        Served(Source(2**62)).read(monkeypatch, stop=None)


def test_the_wait_for_a_busy_server_has_a_bound(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(RefusedError, match="timed out"):
        Served(TimeoutError("timed out")).read(monkeypatch)


@given(
    st.sampled_from(SlotVerb),
    st.builds(Mark, *[st.integers(0, 2**62)] * 4),
    st.integers(0, 2**62),
    st.none() | st.integers(0, 2**62),
    st.text(max_size=60),
)
def test_requests_survive_the_wire(
    verb: SlotVerb, mark: Mark, start: int, stop: int | None, sender: str
) -> None:
    request = SlotRequest(
        verb,
        mark,
        start if verb is SlotVerb.SEND else 0,
        stop if verb is SlotVerb.SEND else None,
        sender if verb is SlotVerb.OFFER else "",
    )
    assert SlotRequest.decode(request.encode()) == request


PARTS = st.sampled_from(["slot", "offer", None]) | st.integers() | st.lists(st.integers(), max_size=5)


@given(st.binary(max_size=60) | st.lists(PARTS, max_size=6).map(lambda parts: json.dumps(parts).encode()))
def test_what_is_no_request_is_a_value_error(line: bytes) -> None:
    with contextlib.suppress(ValueError):
        SlotRequest.decode(line)
