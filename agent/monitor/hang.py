"""Judges when training hangs: no process of this agent has reported a step for too long (docs/hangs.md).

The functions are pure. They take what the processes have reported and the time, and return a new view or a
judgement. All times are of CLOCK_MONOTONIC, in seconds.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from agent.facts.world import Member
from agent.monitor.progress import RankProgress
from crds.agent_report import FailureCause, RankStack

STEP_INTERVALS = 5
"""A step that takes longer than the limit is only slow, as long as it takes less than so many times the
longest step of its round."""

SUSPECT_INTERVALS = 2
"""The same, once somebody has waited for others until its time was up."""

FIRST_STEP_FACTOR = 3
"""The first step after a start may take so many times the limit, because loading and compiling precede it."""

LOOK_SECONDS = 1.0
"""The interval between two looks at the processes."""

LATE_SECONDS = 3.0
"""When a look comes later than this, the container was frozen, and its training processes too. Time beyond
it counts for none: with a limit of ten seconds, a machine that stood still for ten was told as a hang."""


@dataclass(frozen=True)
class StepReporting:
    """Whether the processes of this slot report steps; some scripts do so on the first rank alone."""

    as_first: bool = False
    """They have reported steps while one of them had rank 0."""
    as_other: bool = False
    """They have reported steps while none of them had rank 0."""

    def expects_steps(self, *, first: bool) -> bool:
        return self.as_other or (first and self.as_first)

    def with_step(self, *, first: bool) -> StepReporting:
        """Take note of a step that was reported by processes with rank 0 (`first`), or by others."""
        return replace(self, as_first=True) if first else replace(self, as_other=True)


def step_reporting_of_slot(
    predecessor: Mapping[str, Any], index: int, members: Sequence[Member]
) -> StepReporting:
    """Infer from the report of an earlier agent of this slot whether its processes report steps.

    Args:
        predecessor: the `status.agent` of the earlier agent.
        members: the members of the newest world, in rank order. Unless they say otherwise, the slot is taken
            to have had rank 0.
    """
    failure = predecessor.get("failure") or {}
    stepped = failure.get("step") is not None or failure.get("cause") == FailureCause.HANG.value
    if not (predecessor.get("progress") or predecessor.get("rounds") or stepped):
        return StepReporting()
    return StepReporting().with_step(first=index not in [member.index for member in members[1:]])


@dataclass(frozen=True)
class Liveness:
    """The signs of life that the processes of one start have given so far."""

    looked_at: float
    """When the processes were looked at last."""
    alive_at: float
    """When they were started, or gave the newest sign since that all is well."""
    steps_expected: bool
    """Whether even the first step is expected within a limit."""
    last_step_at: float | None = None
    """When any of them last reported a step."""
    longest_step_seconds: float = 0.0
    """The longest time between two steps, without the time in which they were busy."""

    def limit_seconds(self, hang_timeout_seconds: float) -> float | None:
        """Return how long may pass without a step, or None if nothing says that there will be any."""
        if self.last_step_at is not None:
            return max(hang_timeout_seconds, STEP_INTERVALS * self.longest_step_seconds)
        return FIRST_STEP_FACTOR * hang_timeout_seconds if self.steps_expected else None

    def stalled_seconds(self, now: float) -> float:
        return max(now - self.alive_at, 0.0)

    def hangs(self, hang_timeout_seconds: float, now: float) -> bool:
        limit = self.limit_seconds(hang_timeout_seconds)
        return limit is not None and self.stalled_seconds(now) > limit

    def may_hang(self, hang_timeout_seconds: float, now: float, *, asked: bool = False) -> bool:
        """Whether a world that broke may have hung here, because more than half of the limit has passed.

        Args:
            asked: it is known to hang somewhere, or a collective has timed out, whose limit may be any. Then
                who has been silent for longer than its steps take is a suspect, and so is who has told no
                step.
        """
        limit = self.limit_seconds(hang_timeout_seconds)
        if asked:
            unusual = SUSPECT_INTERVALS * max(self.longest_step_seconds, LOOK_SECONDS)
            limit = 0.0 if limit is None else min(hang_timeout_seconds, 2 * unusual)
        return limit is not None and self.stalled_seconds(now) > limit / 2


def begin(reporting: StepReporting, *, first: bool, now: float) -> Liveness:
    """Return the view of processes that were started just now.

    Args:
        first: whether one of them has rank 0.
        now: the time (CLOCK_MONOTONIC).
    """
    return Liveness(looked_at=now, alive_at=now, steps_expected=reporting.expects_steps(first=first))


def look(liveness: Liveness, processes: Iterable[RankProgress], now: float) -> Liveness:
    """Return the view with what the processes have reported by now."""
    processes = list(processes)
    frozen_seconds = max(now - liveness.looked_at - LATE_SECONDS, 0.0)
    alive_at = min(liveness.alive_at + frozen_seconds, now)
    steps_at = [p.last_report_at for p in processes if p.last_report_at is not None and p.reports_steps]
    before = [] if liveness.last_step_at is None else [liveness.last_step_at]
    last_step_at = max([*steps_at, *before], default=None)
    longest = liveness.longest_step_seconds
    if last_step_at is not None and liveness.last_step_at is not None:
        longest = max(longest, last_step_at - alive_at)
    busy_until = [min(p.busy_until, now) for p in processes if p.busy_until is not None]
    return replace(
        liveness,
        looked_at=now,
        alive_at=max([alive_at, *([] if last_step_at is None else [last_step_at]), *busy_until]),
        last_step_at=last_step_at,
        longest_step_seconds=longest,
    )


def order_by_suspicion(stacks: Sequence[RankStack]) -> list[RankStack]:
    """Order processes by how likely they are to blame for a hang.

    Who waits for others comes last, and before them those that do not say where they are. Of equals, the one
    that is furthest behind comes first; steps count only if all processes have reported one.
    """
    behind = all(stack.step is not None for stack in stacks)

    def innocence(stack: RankStack) -> tuple[bool, bool, int, int]:
        return stack.in_collective, not stack.offered, (stack.step or 0) if behind else 0, stack.rank

    return sorted(stacks, key=innocence)
