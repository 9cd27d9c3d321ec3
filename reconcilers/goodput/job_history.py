"""The stretches of a job's life, for its timeline. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime

from controller.wording import shortened
from crds.job_status import (
    MAX_EPISODE_MEMBERS,
    MAX_EPISODE_REASON,
    MAX_EPISODES,
    Episode,
    EpisodeFailure,
    JobState,
)
from crds.protocol import RendezvousPhase
from crds.ranges import as_ranges
from crds.rendezvous import Rendezvous


def with_episode(history: Sequence[Episode], episode: Episode) -> tuple[Episode, ...]:
    """Appends the new stretch, unless it is the same as the last; when full, the oldest goes.

    A round that fails before it has trained begins none: its failure is added to the last.
    """
    last = history[-1] if history else None
    if last is not None and _what(last) == _what(episode):
        failure = last.failure or episode.failure
        return (*history[:-1], last.model_copy(update={"failure": failure}))
    if last is not None and last.since > episode.since:
        episode = episode.model_copy(update={"since": last.since})
    return (*history, episode)[-MAX_EPISODES:]


def episode_of(
    state: JobState, since: datetime, world: Rendezvous, reason: str, failure: EpisodeFailure | None = None
) -> Episode:
    members = () if world.phase is RendezvousPhase.FORMING else world.members
    return Episode(
        state=state,
        since=since,
        round=world.round,
        members=in_short(members),
        reason=shortened(reason, MAX_EPISODE_REASON),
        failure=failure,
    )


def in_short(members: Sequence[int]) -> str:
    """Such as `0-3,6`; cut where it gets too long."""
    text = as_ranges(members)
    if len(text) <= MAX_EPISODE_MEMBERS:
        return text
    return text[: text.rindex(",", 0, MAX_EPISODE_MEMBERS - 1) + 1] + "…"


def _what(episode: Episode) -> tuple[object, ...]:
    return episode.state, episode.round, episode.members
