"""What training processes told of their steps, as `status.agent` shows it: raw figures for the job's goodput.

Of each round, the first step and the highest, and the time between telling the one and the other: what it
comes to over the job's life is the controller's to say (docs/goodput.md).
"""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from agent.timestamps import rfc3339

KEPT_ROUNDS = 8
"""Of the last rounds: so many the controller may have missed."""

LATELY_SECONDS = 30.0
"""Seconds a step are the mean over the steps of this time, and of the last two at least."""


@dataclass(frozen=True, order=True)
class Told:
    at: float
    """CLOCK_MONOTONIC."""
    step: int


@dataclass(frozen=True)
class Progress:
    """`status.agent.progress`."""

    step: int
    time: datetime
    checkpoint_step: int | None = None
    seconds_per_step: float | None = None

    def to_status(self) -> dict[str, Any]:
        speed = self.seconds_per_step
        return {
            "step": self.step,
            "time": rfc3339(self.time),
            "checkpointStep": self.checkpoint_step,
            "secondsPerStep": None if speed is None else round(speed, 6),
        }


@dataclass(frozen=True)
class RoundProgress:
    """One of `status.agent.rounds`."""

    round: int
    first_step: int
    last_step: int
    stepping_seconds: float

    def to_status(self) -> dict[str, Any]:
        return {
            "round": self.round,
            "firstStep": self.first_step,
            "lastStep": self.last_step,
            "steppingSeconds": round(self.stepping_seconds, 6),
        }

    @classmethod
    def from_status(cls, status: Mapping[str, Any]) -> RoundProgress:
        return cls(
            round=int(status["round"]),
            first_step=int(status["firstStep"]),
            last_step=int(status["lastStep"]),
            stepping_seconds=float(status.get("steppingSeconds") or 0.0),
        )


@dataclass(frozen=True)
class Figures:
    """How far training is; what every report carries."""

    progress: Progress | None = None
    """None if the processes that run told nothing yet."""
    rounds: tuple[RoundProgress, ...] = ()
    """The last ones in which steps were told, the oldest first."""


class Stepping:
    """The processes of one start, look by look. A script may go back meanwhile: the highest step counts."""

    def __init__(self) -> None:
        self._first: dict[int, Told] = {}
        self._highest: dict[int, Told] = {}
        self._lately: deque[Told] = deque()

    def see(self, rank: int, first: Told, newest: Told) -> None:
        """What one process told first (or as the first that we saw of it), and what last."""
        self._first.setdefault(rank, first)
        highest = self._highest.get(rank, self._first[rank])
        self._highest[rank] = newest if newest.step > highest.step else highest
        for told in sorted((self._first[rank], self._highest[rank])):
            self._remember(told)

    def in_round(self, round_: int) -> RoundProgress | None:
        """Of the process that came furthest, the first of these; None if no step was told."""
        if not self._highest:
            return None
        rank = max(self._highest, key=lambda rank: (self._highest[rank].step, -rank))
        first, last = self._first[rank], self._highest[rank]
        return RoundProgress(round_, first.step, last.step, last.at - first.at)

    def seconds_per_step(self) -> float | None:
        """Lately; None before the second step."""
        if len(self._lately) < 2:
            return None
        first, last = self._lately[0], self._lately[-1]
        return (last.at - first.at) / (last.step - first.step)

    def _remember(self, told: Told) -> None:
        """Ever higher steps, ever later."""
        if self._lately and (told.step <= self._lately[-1].step or told.at <= self._lately[-1].at):
            return
        self._lately.append(told)
        while len(self._lately) > 2 and told.at - self._lately[1].at >= LATELY_SECONDS:
            self._lately.popleft()


def with_round(rounds: tuple[RoundProgress, ...], current: RoundProgress | None) -> tuple[RoundProgress, ...]:
    """The last rounds with what is known of the current one now."""
    if current is None:
        return rounds
    others = tuple(known for known in rounds if known.round != current.round)
    return (*others, current)[-KEPT_ROUNDS:]
