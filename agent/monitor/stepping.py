"""The steps that training processes have reported, as raw figures in `status.agent` for the job's goodput.

Each round has its first step, its highest step, and the time between the reports of the two. The controller
computes from these what they come to over the life of the job (docs/metrics.md).
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass
from typing import TYPE_CHECKING

from crds.agent_report import MAX_ROUNDS, AgentCheckpointTrouble, RoundProgress, Slow, StepProgress

if TYPE_CHECKING:
    from crds.agent_report import Series

LATELY_SECONDS = 30.0
"""`secondsPerStep` is the mean over the steps of so long a time, and over the last two steps at least."""


@dataclass(frozen=True, order=True)
class StepReport:
    """A step, or the step of a checkpoint, that a process has reported. Reports are ordered by time."""

    at: float
    """When it was reported (CLOCK_MONOTONIC, in seconds)."""
    step: int


@dataclass(frozen=True)
class ProcessStart:
    """One start of an agent's training processes."""

    round: int = 0
    world_size: int = 1
    leads: bool = True
    """One of the processes has rank 0, so this agent speaks for the job."""
    of_new_job: bool = False
    """The job had made no step before."""


@dataclass(frozen=True)
class Figures:
    """How far training is. Every report of the agent carries these."""

    progress: StepProgress | None = None
    """None if the processes that run have reported nothing yet."""
    rounds: tuple[RoundProgress, ...] = ()
    """The last rounds in which steps were reported, the oldest first."""
    checkpoint_trouble: AgentCheckpointTrouble | None = None
    """What does not work with checkpoints."""
    series: Series | None = None
    """The job's past, where it is this agent's to tell."""
    slow: Slow | None = None


class Stepping:
    """The steps of the processes of one start. A script may go back meanwhile, so the highest step counts.

    Args:
        counted: whether these were counted, or reported.
    """

    def __init__(self, *, counted: bool = False) -> None:
        self.counted = counted
        self.start_unknown = False
        """Nobody knows which step the count began with."""
        self.non_finite_step: int | None = None
        """The lowest step whose loss a process reported to be NaN or infinite."""
        self.samples_per_step: int | None = None
        self._first: dict[int, StepReport] = {}
        self._highest: dict[int, StepReport] = {}
        self._recent: deque[StepReport] = deque()

    def observe(self, rank: int, first: StepReport, newest: StepReport) -> None:
        """Take note of what one process has reported.

        Args:
            first: its first report, or the first one that was seen.
            newest: its newest report.
        """
        self._first.setdefault(rank, first)
        highest = self._highest.get(rank, self._first[rank])
        self._highest[rank] = newest if newest.step > highest.step else highest
        for report in sorted((self._first[rank], self._highest[rank])):
            self._remember(report)

    def in_round(self, round_: int) -> RoundProgress | None:
        """Return the progress of the process that got furthest, or None if no step was reported."""
        if not self._highest:
            return None
        rank = max(self._highest, key=lambda rank: (self._highest[rank].step, -rank))
        first, last = self._first[rank], self._highest[rank]
        seconds = last.at - first.at
        return RoundProgress(
            round_,
            first.step,
            last.step,
            seconds,
            counted=self.counted or None,
            start_unknown=self.start_unknown or None,
            non_finite_step=self.non_finite_step,
            samples_per_step=self.samples_per_step,
        )

    def seconds_per_step(self) -> float | None:
        """Return the mean of the last `LATELY_SECONDS`, or None before the second step."""
        if len(self._recent) < 2:
            return None
        first, last = self._recent[0], self._recent[-1]
        return (last.at - first.at) / (last.step - first.step)

    def _remember(self, report: StepReport) -> None:
        """Keep the recent reports, of which each has a higher step and a later time than the one before."""
        if self._recent and (report.step <= self._recent[-1].step or report.at <= self._recent[-1].at):
            return
        self._recent.append(report)
        while len(self._recent) > 2 and report.at - self._recent[1].at >= LATELY_SECONDS:
            self._recent.popleft()


def with_round(rounds: tuple[RoundProgress, ...], current: RoundProgress | None) -> tuple[RoundProgress, ...]:
    """Return the last rounds, with what is known now of the current one.

    What was counted is left out once the script reports its steps: its numbers compare with no others.
    """
    if current is None:
        return rounds
    others = tuple(r for r in rounds if r.round != current.round and (current.counted or not r.counted))
    return (*others, current)[-MAX_ROUNDS:]
