"""Goodput: what share of a job's life was effective training (docs/metrics.md). Pure."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from datetime import datetime

from crds.agent_report import RoundProgress
from crds.elasticjob import ElasticJob
from crds.elasticworker import ElasticWorker
from crds.job_status import Goodput, JobState
from reconcilers.goodput.rounds import reported_rounds, with_comparable_steps
from reconcilers.observed.groups import group_of
from reconcilers.observed.workers import Workers

AFTER_A_FAILURE = (JobState.RECOVERING, JobState.DOWN)
"""States in which a job is because of a failure."""
DIGITS = 6
"""Of seconds, so that sums stay readable."""
_NO_STEPS = {
    "first_step": None,
    "last_step": None,
    "steps_redone": 0,
    "steps_timed": 0,
    "stepping_seconds": 0.0,
    "round": 0,
    "latest": None,
}


def begun(job: ElasticJob, now: datetime) -> Goodput:
    """A job's account starts with its submission."""
    return Goodput(state=JobState.PENDING, since=job.metadata.creation_timestamp or now)


def goodput_now(job: ElasticJob, workers: Iterable[ElasticWorker], now: datetime) -> Goodput:
    """The account with all that the job's workers have told since it was written, and the ratio as of now."""
    known = job.status.goodput
    if known is not None and job.status.finished:
        return known
    goodput = known or begun(job, now)
    telling = with_comparable_steps(job, Workers(workers)).telling_steps
    told = reported_rounds(telling, since=goodput.round)
    return with_ratio(with_rounds(goodput, told), job, now)


def seconds_by_state(goodput: Goodput, until: datetime) -> dict[JobState, float]:
    """Adds the present state's time; `until` is now, or the end of a job that has finished."""
    seconds = in_state(goodput, goodput.state, until).seconds
    return {state: seconds[state.value] for state in JobState if state.value in seconds}


def lost_seconds(goodput: Goodput) -> float:
    """What failures have cost, up to the last state: the time from each until training went on."""
    return sum(goodput.seconds.get(state.value, 0.0) for state in AFTER_A_FAILURE)


def in_state(goodput: Goodput, state: JobState, at: datetime) -> Goodput:
    """Enters that state at `at`, but never before the last one began."""
    at = max(at, goodput.since)
    return _spent(goodput, goodput.state, (at - goodput.since).total_seconds()).model_copy(
        update={"state": state, "since": at}
    )


def reassigned(goodput: Goodput, state: JobState, until: datetime) -> Goodput:
    """The time from `since` until then was spent in another state than was thought."""
    until = max(until, goodput.since)
    seconds = (until - goodput.since).total_seconds()
    return _spent(goodput, state, seconds).model_copy(update={"since": until})


def with_rounds(goodput: Goodput, told: Sequence[RoundProgress]) -> Goodput:
    """Adds all that was reported of the last round in the account and of later ones.

    The steps that agents counted for a script are forgotten when it tells the first itself, and none are
    taken afterwards: the numbers do not compare.
    """
    for figures in told:
        latest = goodput.latest
        if latest is not None and figures.counted and not latest.counted:
            continue
        if latest is not None and latest.counted and not figures.counted:
            goodput = goodput.model_copy(update=_NO_STEPS)
        if figures.round > goodput.round:
            goodput = _with_new_round(goodput, figures)
        elif figures.round == goodput.round and goodput.latest is not None:
            goodput = _put_right(goodput, goodput.latest, figures)
    return goodput


def effective_seconds(goodput: Goodput, *, of_group: bool = False) -> float | None:
    """Steps kept × seconds a step; None before two steps of one round were told.

    Args:
        of_group: the account is that of a replica group, without which the others make steps; so those that
            are kept are its timed ones.
    """
    if goodput.first_step is None or goodput.last_step is None or not goodput.steps_timed:
        return None
    kept = goodput.last_step - goodput.first_step + 1
    if of_group:
        kept = max(0, goodput.steps_timed - goodput.steps_redone)
    return kept * goodput.stepping_seconds / goodput.steps_timed


def with_ratio(goodput: Goodput, job: ElasticJob, now: datetime) -> Goodput:
    """Over the time since submission; no more than all of it, whatever workers and clocks say."""
    effective = effective_seconds(goodput, of_group=group_of(job) is not None)
    submitted = job.metadata.creation_timestamp
    if effective is None or submitted is None or now <= submitted:
        return goodput.model_copy(update={"ratio": None})
    ratio = effective / (now - submitted).total_seconds()
    return goodput.model_copy(update={"ratio": round(min(1.0, ratio), DIGITS)})


def _spent(goodput: Goodput, state: JobState, seconds: float) -> Goodput:
    if seconds <= 0:
        return goodput
    spent = dict(goodput.seconds)
    spent[state.value] = round(spent.get(state.value, 0.0) + seconds, DIGITS)
    return goodput.model_copy(update={"seconds": spent})


def _with_new_round(goodput: Goodput, figures: RoundProgress) -> Goodput:
    before = goodput.last_step
    redone = 0 if before is None else max(min(before, figures.last_step) + 1 - figures.first_step, 0)
    return _counted(goodput, figures, steps_redone=goodput.steps_redone + redone)


def _put_right(goodput: Goodput, counted: RoundProgress, figures: RoundProgress) -> Goodput:
    """Later figures of the round that was counted last. Its first step was known from the beginning.

    As long as it is below the highest step, what it trained since is trained again.
    """
    if figures.last_step <= counted.last_step:
        return goodput
    highest = goodput.last_step if goodput.last_step is not None else counted.last_step
    redone = max(min(highest, figures.last_step) - counted.last_step, 0)
    without = goodput.model_copy(
        update={
            "steps_timed": goodput.steps_timed - (counted.last_step - counted.first_step),
            "stepping_seconds": goodput.stepping_seconds - counted.stepping_seconds,
        }
    )
    return _counted(without, figures, steps_redone=goodput.steps_redone + redone)


def _counted(goodput: Goodput, figures: RoundProgress, steps_redone: int) -> Goodput:
    first = (goodput.first_step, figures.first_step)
    last = (goodput.last_step, figures.last_step)
    return goodput.model_copy(
        update={
            "first_step": min(step for step in first if step is not None),
            "last_step": max(step for step in last if step is not None),
            "steps_redone": steps_redone,
            "steps_timed": goodput.steps_timed + figures.last_step - figures.first_step,
            "stepping_seconds": round(max(goodput.stepping_seconds, 0.0) + figures.stepping_seconds, DIGITS),
            "round": figures.round,
            "latest": figures,
        }
    )


def start_is_unknown(goodput: Goodput | None) -> bool:
    """Return whether the step from which the last start went on is unknown: goodput is a lower bound then."""
    return (
        goodput is not None
        and goodput.latest is not None
        and goodput.latest.counted is True
        and (goodput.latest.start_unknown is True or goodput.latest.first_step == 1)
        and goodput.steps_redone > 0
    )
