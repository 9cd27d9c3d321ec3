"""A false network: connections that delay, and break, and requests that may be lost or late."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from tests.played.schedule import Schedule


@dataclass(frozen=True)
class Faults:
    """How likely something goes wrong, and how long it takes."""

    delay_seconds: float = 0.0
    """Longest delay of a message; each is drawn."""
    cut: float = 0.0
    """Probability that a message breaks its connection. What was sent before may still arrive, or not."""
    drop: float = 0.0
    """Probability that a request is lost, or its answer."""
    late: float = 0.0
    """Probability that a request, lost or not, arrives when its client has long given up on it."""
    late_seconds: float = 30.0
    """The most that it is late."""


class End:
    """One end of a connection, which keeps the order of messages, as TCP does.

    Args:
        receive: is called with each message.
        lose: is called once, when the connection is broken or closed by the other end.
    """

    def __init__(
        self,
        schedule: Schedule,
        faults: Faults,
        name: str,
        receive: Callable[[Any], object],
        lose: Callable[[], object],
    ) -> None:
        self._schedule, self._faults, self.name = schedule, faults, name
        self._receive, self._lose = receive, lose
        self._other: End | None = None
        self._free_at = 0.0
        """When the last message that this end has sent arrives."""
        self.is_open = True

    def send(self, message: Any) -> bool:
        """Send a message; return whether the connection is open as far as this end has seen."""
        if not self.is_open:
            return False
        assert self._other is not None
        if self._schedule.chance(self._faults.cut):
            self._break()
            return True
        other = self._other
        self._arrive(f"{other.name} receives {message}", lambda: other._take(message))
        return True

    def close(self) -> None:
        """Close it; the other end sees that after what was sent."""
        if self.is_open:
            self.is_open = False
            assert self._other is not None
            self._arrive(f"{self._other.name} sees the end", self._other._end)

    def _arrive(self, name: str, act: Callable[[], object]) -> None:
        delay = self._schedule.random.uniform(0.0, self._faults.delay_seconds)
        self._free_at = max(self._free_at + 1e-9, self._schedule.now + delay)
        self._schedule.at(self._free_at, name, act)

    def _break(self) -> None:
        assert self._other is not None
        for end in (self, self._other):
            self._schedule.after(
                self._schedule.random.uniform(0.0, self._faults.delay_seconds), f"{end.name} breaks", end._end
            )

    def _take(self, message: Any) -> None:
        if self.is_open:
            self._receive(message)

    def _end(self) -> None:
        if self.is_open:
            self.is_open = False
            self._lose()


def connect(
    schedule: Schedule,
    faults: Faults,
    one: tuple[str, Callable[[Any], object], Callable[[], object]],
    other: tuple[str, Callable[[Any], object], Callable[[], object]],
) -> tuple[End, End]:
    """Return both ends of a connection; each is named, and has what it calls with messages and at the end."""
    first, second = End(schedule, faults, *one), End(schedule, faults, *other)
    first._other, second._other = second, first
    return first, second


def request(
    schedule: Schedule, faults: Faults, name: str, act: Callable[[], Any], answer: Callable[[Any], object]
) -> None:
    """Send a request: it or its answer may be lost, and it may come late, for the second time or the first.

    Args:
        act: is done where it arrives.
        answer: is called with what `act` returned, or with a ConnectionError where that is lost.
    """

    def lose() -> None:
        answer(ConnectionError(f"{name}: no answer"))

    def arrive() -> None:
        result = act()
        if schedule.chance(faults.drop):
            schedule.after(faults.delay_seconds, f"{name}: answer lost", lose)
        else:
            delay = schedule.random.uniform(0.0, faults.delay_seconds)
            schedule.after(delay, f"{name}: answer", lambda: answer(result))

    if schedule.chance(faults.drop):
        schedule.after(faults.delay_seconds, f"{name}: lost", lose)
    else:
        schedule.after(schedule.random.uniform(0.0, faults.delay_seconds), name, arrive)
    if schedule.chance(faults.late):
        late = schedule.random.uniform(faults.delay_seconds, faults.delay_seconds + faults.late_seconds)
        schedule.after(late, f"{name}: late", act)
