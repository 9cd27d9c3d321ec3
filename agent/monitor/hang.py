"""Judges whether training hangs: no process of this agent has reported a step for too long (docs/hangs.md).

The functions are pure. They take the processes' reports and the time, and return a new view or a judgement.
All times are of CLOCK_MONOTONIC, in seconds.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from agent.facts.world import Member
from agent.monitor.progress import RankProgress
from crds.agent_report import FailureCause, RankStack

STEP_INTERVALS = 5
"""Multiple of the longest step of the round up to which a step beyond the limit is slow, not hanging."""

SUSPECT_INTERVALS = 2
"""The same, after a collective of another process has timed out."""

FIRST_STEP_FACTOR = 3
"""Multiple of the limit for the first step after a start, which loading and compiling precede."""

LOOK_SECONDS = 1.0
"""Interval of the looks at the processes."""

LATE_SECONDS = 3.0
"""Time since the last look from which the container is taken to have been frozen, with its training
processes. Time beyond it does not count, so that a frozen machine is not reported as a hang."""


@dataclass(frozen=True)
class StepReporting:
    """Whether the processes of this slot report steps; some scripts do so only on rank 0."""

    as_first: bool = False
    """They have reported steps while one of them had rank 0."""
    as_other: bool = False
    """They have reported steps while none of them had rank 0."""

    def expects_steps(self, *, first: bool) -> bool:
        return self.as_other or (first and self.as_first)

    def with_step(self, *, first: bool) -> StepReporting:
        """Note a step that was reported by processes with rank 0 (`first`), or by others."""
        return replace(self, as_first=True) if first else replace(self, as_other=True)


def step_reporting_of_slot(
    predecessor: Mapping[str, Any], index: int, members: Sequence[Member]
) -> StepReporting:
    """Infer from the report of an earlier agent of this slot whether its processes report steps.

    Args:
        predecessor: the `status.agent` of the earlier agent.
        members: members of the newest world, in rank order. A slot that is not among them is taken to have
        had
            rank 0.
    """
    failure = predecessor.get("failure") or {}
    stepped = failure.get("step") is not None or failure.get("cause") == FailureCause.HANG.value
    if not (predecessor.get("progress") or predecessor.get("rounds") or stepped):
        return StepReporting()
    return StepReporting().with_step(first=index not in [member.index for member in members[1:]])


@dataclass(frozen=True)
class Liveness:
    """Signs of life of the processes of one start."""

    looked_at: float
    """Time of the last look."""
    alive_at: float
    """Time of their start or of the newest sign of life."""
    steps_expected: bool
    """Whether even the first step has a time limit."""
    last_step_at: float | None = None
    """Time of the newest step of any process."""
    longest_step_seconds: float = 0.0
    """Longest time between two steps, without the time in which they were busy."""

    def limit_seconds(self, hang_timeout_seconds: float) -> float | None:
        """Return the longest time allowed without a step; None if no steps are expected."""
        if self.last_step_at is not None:
            return max(hang_timeout_seconds, STEP_INTERVALS * self.longest_step_seconds)
        return FIRST_STEP_FACTOR * hang_timeout_seconds if self.steps_expected else None

    def stalled_seconds(self, now: float) -> float:
        return max(now - self.alive_at, 0.0)

    def hangs(self, hang_timeout_seconds: float, now: float) -> bool:
        limit = self.limit_seconds(hang_timeout_seconds)
        return limit is not None and self.stalled_seconds(now) > limit

    def may_hang(self, hang_timeout_seconds: float, now: float, *, asked: bool = False) -> bool:
        """Whether a broken world may have hung here, since more than half of the limit has passed.

        Args:
            asked: the world hangs somewhere, or a collective has timed out, whose limit is arbitrary. Then
                processes are suspect that have been silent for longer than their steps take, or have not
                reported any step.
        """
        limit = self.limit_seconds(hang_timeout_seconds)
        if asked:
            unusual = SUSPECT_INTERVALS * max(self.longest_step_seconds, LOOK_SECONDS)
            limit = 0.0 if limit is None else min(hang_timeout_seconds, 2 * unusual)
        return limit is not None and self.stalled_seconds(now) > limit / 2


def begin(reporting: StepReporting, *, first: bool, now: float) -> Liveness:
    """Return the view of processes that were just started.

    Args:
        first: whether one of them has rank 0.
        now: the time (CLOCK_MONOTONIC).
    """
    return Liveness(looked_at=now, alive_at=now, steps_expected=reporting.expects_steps(first=first))


def look(liveness: Liveness, processes: Iterable[RankProgress], now: float) -> Liveness:
    """Return the view updated with the processes' reports."""
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
    """Order processes by how likely they cause a hang.

    Processes that wait for others come last, preceded by those whose place is unknown. Of equals, the one
    that is furthest behind comes first; steps count only if all processes have reported one.
    """
    behind = all(stack.step is not None for stack in stacks)

    def innocence(stack: RankStack) -> tuple[bool, bool, int, int]:
        return stack.in_collective, not stack.offered, (stack.step or 0) if behind else 0, stack.rank

    return sorted(stacks, key=innocence)
