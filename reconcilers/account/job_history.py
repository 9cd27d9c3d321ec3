"""The stretches of a job's life, for its timeline. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from datetime import datetime

from controller.wording import shortened
from crds.elasticjob import Episode, JobState, Rendezvous, RendezvousPhase

MAX_EPISODES = 50
MAX_MEMBERS = 128
MAX_REASON = 256


def with_episode(history: Sequence[Episode], episode: Episode) -> tuple[Episode, ...]:
    """With the new stretch at the end, unless it is the same as the last; when full, the oldest goes."""
    last = history[-1] if history else None
    if last is not None and _what(last) == _what(episode):
        return tuple(history)
    if last is not None and last.since > episode.since:
        episode = episode.model_copy(update={"since": last.since})
    return (*history, episode)[-MAX_EPISODES:]


def episode_of(state: JobState, since: datetime, world: Rendezvous, reason: str) -> Episode:
    members = () if world.phase is RendezvousPhase.FORMING else world.members
    return Episode(
        state=state,
        since=since,
        round=world.round,
        members=as_ranges(members),
        reason=shortened(reason, MAX_REASON),
    )


def as_ranges(indices: Iterable[int]) -> str:
    """Such as `0-3,6`; cut where it gets too long."""
    runs: list[tuple[int, int]] = []
    for index in sorted(indices):
        if runs and runs[-1][1] == index - 1:
            runs[-1] = runs[-1][0], index
        else:
            runs.append((index, index))
    text = ",".join(f"{first}-{last}" if last > first else str(first) for first, last in runs)
    if len(text) <= MAX_MEMBERS:
        return text
    return text[: text.rindex(",", 0, MAX_MEMBERS - 1) + 1] + "…"


def _what(episode: Episode) -> tuple[object, ...]:
    return episode.state, episode.round, episode.members
