"""Rounds into which training processes lived on: time since the failure counts as re-forming. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import timedelta
from itertools import pairwise

from crds.job_status import Episode, Goodput, JobState
from crds.rendezvous import Rendezvous
from reconcilers.goodput.goodput import in_state, moved
from reconcilers.observed.workers import Workers

OUTAGE = (JobState.RECOVERING, JobState.REFORMING)


def lived_on(round_: int, workers: Workers) -> int:
    """Return the number of training processes reported to have lived on into the round."""
    reports = (worker.status.agent for worker in workers.living_on)
    lives = (report.lived_on for report in reports if report is not None)
    return sum(each.processes for each in lives if each is not None and each.round == round_)


def with_lives(
    goodput: Goodput, history: tuple[Episode, ...], world: Rendezvous, workers: Workers
) -> tuple[Goodput, tuple[Episode, ...]]:
    """Count the outage before the world's round as re-forming, if processes lived on into the round.

    Agents with such processes report it when the round starts, or later.
    """
    begin, end = _outage(history, world.round)
    lived = lived_on(world.round, workers) if begin < end else 0
    if not lived:
        return goodput, history
    size = max(world.world_size, lived)
    counted = {"lived_on": lived, "processes": size}
    outage = [
        each.model_copy(update={"state": JobState.REFORMING} | (counted if each.round == world.round else {}))
        for each in history[begin:end]
    ]
    if end == len(history):  # it goes on
        return in_state(goodput, JobState.REFORMING, outage[0].since), (*history[:begin], *outage)
    seconds = _recovering_seconds(history[begin : end + 1])
    goodput = moved(goodput, JobState.RECOVERING, JobState.REFORMING, seconds)
    return goodput, (*history[:begin], *outage, *history[end:])


def _outage(history: Sequence[Episode], round_: int) -> tuple[int, int]:
    """Return begin and end of the episodes from the previous round's failure to this one's first step."""
    end = len(history)
    while end and history[end - 1].round == round_ and history[end - 1].state is JobState.TRAINING:
        end -= 1
    begin = end
    while begin and history[begin - 1].state in OUTAGE and history[begin - 1].round >= round_ - 1:
        begin -= 1
    is_of_round = begin < end and history[end - 1].round == round_
    return (begin, end) if is_of_round else (end, end)


def _recovering_seconds(episodes: Sequence[Episode]) -> float:
    """Return the recovering time of all episodes but the last."""
    spans = (
        following.since - each.since
        for each, following in pairwise(episodes)
        if each.state is JobState.RECOVERING
    )
    return sum(spans, timedelta()).total_seconds()
