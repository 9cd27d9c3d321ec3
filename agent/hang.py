"""When training hangs: no process of this agent has told a step for longer than the limit (docs/hangs.md).

Pure: what the processes told goes in, with the time; out come new views and a judgement. All times are of
CLOCK_MONOTONIC, in seconds.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from agent.failure import Cause, RankStack
from agent.progress import RankProgress
from agent.world import Member

STEP_INTERVALS = 5
"""A step is slow, not stuck, until it has taken so many times as long as the longest of its round."""

FIRST_STEP_FACTOR = 3
"""Of the limit, for the first step after a start: loading and compiling come before it."""

LOOK_SECONDS = 1.0
"""Between looks."""

LATE_SECONDS = 10.0
"""A look that is later than this was not late: we were stopped (a frozen container), and so were they."""


@dataclass(frozen=True)
class Habit:
    """Whether this agent's processes tell steps at all; some scripts do so on the first rank alone."""

    as_first: bool = False
    """They did when they had the first rank."""
    as_other: bool = False
    """They did when they had not."""

    def expects_steps(self, *, first: bool) -> bool:
        return self.as_other or (first and self.as_first)

    def with_step(self, *, first: bool) -> Habit:
        return replace(self, as_first=True) if first else replace(self, as_other=True)


def habit_of_slot(predecessor: Mapping[str, Any], index: int, members: Sequence[Member]) -> Habit:
    """By what an earlier agent of this slot told.

    Args:
        predecessor: its `status.agent`.
        members: of the newest world, in rank order: unless it says otherwise, the slot had the first rank.
    """
    failure = predecessor.get("failure") or {}
    stepped = failure.get("step") is not None or failure.get("cause") == Cause.HANG.value
    if not (predecessor.get("progress") or predecessor.get("rounds") or stepped):
        return Habit()
    return Habit().with_step(first=index not in [member.index for member in members[1:]])


@dataclass(frozen=True)
class Watch:
    """What one start of the processes has shown so far."""

    looked_at: float
    alive_at: float
    """The start, or the newest sign since that all is well."""
    steps_expected: bool
    """That they tell a first step, too."""
    told_at: float | None = None
    """The newest step of any of them."""
    longest_seconds: float = 0.0
    """Between two steps, time in which they were busy not counted."""

    def limit_seconds(self, hang_timeout_seconds: float) -> float | None:
        """How long may pass without a step; None where nothing says that there will be any."""
        if self.told_at is not None:
            return max(hang_timeout_seconds, STEP_INTERVALS * self.longest_seconds)
        return FIRST_STEP_FACTOR * hang_timeout_seconds if self.steps_expected else None

    def stalled_seconds(self, now: float) -> float:
        return max(now - self.alive_at, 0.0)

    def hangs(self, hang_timeout_seconds: float, now: float) -> bool:
        limit = self.limit_seconds(hang_timeout_seconds)
        return limit is not None and self.stalled_seconds(now) > limit

    def may_hang(self, hang_timeout_seconds: float, now: float) -> bool:
        """Whether, in a world that broke, this may be where it hung: more than half the limit has passed."""
        limit = self.limit_seconds(hang_timeout_seconds)
        return limit is not None and self.stalled_seconds(now) > limit / 2


def begin(habit: Habit, *, first: bool, now: float) -> Watch:
    """Of processes that were started just now; `first`: one of them has rank 0."""
    return Watch(looked_at=now, alive_at=now, steps_expected=habit.expects_steps(first=first))


def look(watch: Watch, processes: Iterable[RankProgress], now: float) -> Watch:
    """Take in what the processes have told by now."""
    processes = list(processes)
    stopped_seconds = max(now - watch.looked_at - LATE_SECONDS, 0.0)
    alive_at = min(watch.alive_at + stopped_seconds, now)
    told = [p.last_told for p in processes if p.last_told is not None and p.tells_steps]
    told_at = max([*told, *([] if watch.told_at is None else [watch.told_at])], default=None)
    longest = watch.longest_seconds
    if told_at is not None and watch.told_at is not None:
        longest = max(longest, told_at - alive_at)
    busy_until = [min(p.busy_until, now) for p in processes if p.busy_until is not None]
    return replace(
        watch,
        looked_at=now,
        alive_at=max([alive_at, *([] if told_at is None else [told_at]), *busy_until]),
        told_at=told_at,
        longest_seconds=longest,
    )


def suspects_first(stacks: Sequence[RankStack]) -> list[RankStack]:
    """In the order in which the processes may be to blame: the one that is furthest behind, then those that
    do not just wait for others. Steps count only if all have told one."""
    behind = all(stack.step is not None for stack in stacks)

    def innocence(stack: RankStack) -> tuple[int, bool, int]:
        return (stack.step or 0) if behind else 0, stack.in_collective, stack.rank

    return sorted(stacks, key=innocence)
