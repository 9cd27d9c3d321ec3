"""Reported steps of training processes, as raw figures in `status.agent` for the job's goodput.

Each round has its first step, its highest step, and the time between the reports of the two. From these the
controller computes the goodput over the life of the job (docs/metrics.md).
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass
from typing import TYPE_CHECKING

from crds.agent_report import MAX_ROUNDS, AgentCheckpointTrouble, RoundProgress, Slow, StepProgress

if TYPE_CHECKING:
    from crds.agent_report import Series

LATELY_SECONDS = 30.0
"""Time over which `secondsPerStep` is the mean; it covers the last two steps at least."""


@dataclass(frozen=True, order=True)
class StepReport:
    """Report of a step, or of a checkpoint's step, by a process. Reports are ordered by time."""

    at: float
    """Time of the report (CLOCK_MONOTONIC, in seconds)."""
    step: int


@dataclass(frozen=True)
class ProcessStart:
    """One start of an agent's training processes."""

    round: int = 0
    world_size: int = 1
    leads: bool = True
    """One of the processes has rank 0, so this agent reports for the job."""
    of_new_job: bool = False
    """The job had made no step before."""


@dataclass(frozen=True)
class Figures:
    """Figures on progress in each report of the agent."""

    progress: StepProgress | None = None
    """None if the current processes have reported nothing yet."""
    rounds: tuple[RoundProgress, ...] = ()
    """Last rounds with reported steps, the oldest first."""
    checkpoint_trouble: AgentCheckpointTrouble | None = None
    """Trouble with checkpoints."""
    series: Series | None = None
    """The job's past; None if another agent reports it."""
    slow: Slow | None = None


class Stepping:
    """Steps of the processes of one start. The highest step counts, since a script may go back.

    Args:
        counted: the steps were counted, not reported by the script.
    """

    def __init__(self, *, counted: bool = False) -> None:
        self.counted = counted
        self.start_unknown = False
        """The count began with an unknown step."""
        self.non_finite_step: int | None = None
        """Lowest step whose loss a process reported to be NaN or infinite."""
        self.samples_per_step: int | None = None
        self._first: dict[int, StepReport] = {}
        self._highest: dict[int, StepReport] = {}
        self._recent: deque[StepReport] = deque()

    def observe(self, rank: int, first: StepReport, newest: StepReport) -> None:
        """Note the reports of one process.

        Args:
            first: its first report, or the first one that was read.
            newest: its newest report.
        """
        self._first.setdefault(rank, first)
        highest = self._highest.get(rank, self._first[rank])
        self._highest[rank] = newest if newest.step > highest.step else highest
        for report in sorted((self._first[rank], self._highest[rank])):
            self._remember(report)

    def in_round(self, round_: int) -> RoundProgress | None:
        """Return the progress of the process with the highest step; None if no step was reported."""
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
        """Return the mean of the last `LATELY_SECONDS`; None before the second step."""
        if len(self._recent) < 2:
            return None
        first, last = self._recent[0], self._recent[-1]
        return (last.at - first.at) / (last.step - first.step)

    def _remember(self, report: StepReport) -> None:
        """Add a report to the recent ones if its step is higher, and its time later, than all of theirs."""
        if self._recent and (report.step <= self._recent[-1].step or report.at <= self._recent[-1].at):
            return
        self._recent.append(report)
        while len(self._recent) > 2 and report.at - self._recent[1].at >= LATELY_SECONDS:
            self._recent.popleft()


def with_round(rounds: tuple[RoundProgress, ...], current: RoundProgress | None) -> tuple[RoundProgress, ...]:
    """Return the last rounds, with the current one updated.

    Rounds with counted steps are left out once the script reports its steps: the numbers are not comparable.
    """
    if current is None:
        return rounds
    others = tuple(r for r in rounds if r.round != current.round and (current.counted or not r.counted))
    return (*others, current)[-MAX_ROUNDS:]
