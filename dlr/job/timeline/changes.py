"""Planned changes in a job's history: of its count, its Pods or its nodes, and suspensions. Pure.

The states that follow distinguish them from failures, after which a job recovers, re-forms or is down.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import groupby, pairwise

from crds.job_status import JobState
from dlr.job.timeline.episodes import Span, Stretch
from reconcilers.goodput.goodput import AFTER_A_FAILURE


@dataclass(frozen=True)
class PlannedChange:
    at: float
    state: str
    """State of the job because of it: Forming, Checking or Suspended."""
    text: str
    """The controller's reason."""
    pause: Span
    """Time until training resumed, or until now."""


def planned_changes(episodes: Sequence[Stretch]) -> tuple[PlannedChange, ...]:
    """Return the changes in a job's history, the oldest first."""
    return tuple(sorted((*_pauses(episodes), *_without_pause(episodes)), key=lambda change: change.at))


def _pauses(episodes: Sequence[Stretch]) -> Iterator[PlannedChange]:
    """Yield a change for each pause that follows no failure, and for each suspension."""
    began = 0
    for trains, stretches in groupby(episodes, key=lambda each: each.span.state == JobState.TRAINING):
        together = [*stretches]
        begins, began = began == 0, together[-1].round
        if trains:
            continue
        first = next((each for each in together if each.span.state == JobState.SUSPENDED), None)
        is_first_start = begins and together[-1].round <= 1
        if first is None and not is_first_start and not any(map(_follows_failure, together)):
            first = together[0]
        if first is not None:
            yield _change(first, together[together.index(first) :])


def _follows_failure(stretch: Stretch) -> bool:
    return stretch.failure is not None or stretch.span.state in AFTER_A_FAILURE


def _change(first: Stretch, together: Sequence[Stretch]) -> PlannedChange:
    states = [each.span.state for each in together]
    state = next((each for each in (JobState.SUSPENDED, JobState.CHECKING) if each in states), states[0])
    text = next((each.reason for each in together if each.reason), "")
    return PlannedChange(
        first.span.begin, str(state), text, Span(str(state), first.span.begin, together[-1].span.end, text)
    )


def _without_pause(episodes: Sequence[Stretch]) -> Iterator[PlannedChange]:
    """Yield changes of the world without a pause, as in a script that reports no steps."""
    for before, after in pairwise(episodes):
        both = before.span.state == after.span.state == JobState.TRAINING
        if both and after.round > before.round:
            at, state = after.span.begin, str(JobState.FORMING)
            text = after.reason or f"round {after.round} began"
            yield PlannedChange(at, state, text, Span(state, at, at, text))
