"""Requests of a candidate to the API server, and their times: a state machine without I/O.

`next_ask` returns the request to send now, and `next_at` the time of the next one. `answered`, `refused`,
`failed` and `pod_answered` process the outcomes, in any order and however late. An unanswered request
continues until its answer would be useless, while another one is sent.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field, replace
from datetime import datetime
from enum import Enum

from controller.leader import election
from controller.leader.container_end import has_ended, pod_of
from controller.leader.election import LeaseRecord, Move, Tenure
from controller.resources import Object


class AskKind(Enum):
    LOOK = "look"
    CREATE = "create"
    REPLACE = "replace"
    LOOK_AT_POD = "look at pod"


@dataclass(frozen=True)
class Ask:
    """A request to send now."""

    kind: AskKind
    sent_at: float
    lease: Object = field(default_factory=dict)
    """Lease to write; empty for a read."""
    version: str = ""
    """Version of the Lease before that write; empty if there was none."""
    holder: str = ""
    """Holder whose Pod is read."""


@dataclass(frozen=True)
class Candidacy:
    """State of a candidate: what it has seen and requested."""

    namespace: str
    name: str
    tenure: Tenure
    spread: float = 0.0
    """Share by which the reads of a standby are delayed, so that several standbys do not coincide."""
    must_look: bool = True
    """Whether the Lease's content is uncertain: a write is unanswered, or was refused."""
    due_at: float = -math.inf
    """Time when the next request for the Lease is due."""
    newest_at: float = -math.inf
    """Time when the newest request for the Lease was sent."""
    claimed_version: str = ""
    claimed_at: float = -math.inf
    pod_due_at: float = -math.inf

    @property
    def version(self) -> str:
        """Version of the Lease as last seen; empty if there is none."""
        return self.tenure.record.resource_version if self.tenure.record else ""

    def is_suspended(self, now: float) -> bool:
        """Whether it stopped leading only because answers are missing."""
        return self.tenure.is_holder and not self.tenure.leads(now)

    @property
    def doubted_holder(self) -> str:
        """Holder whose container may have ended; empty if there is none to check."""
        record = self.tenure.record
        if record is None or record.holder in (self.tenure.identity, self.tenure.ended_holder):
            return ""
        return record.holder if pod_of(record.holder) else ""


def next_at(state: Candidacy) -> float:
    """Return the time of the next request."""
    return min(state.due_at, state.pod_due_at) if state.doubted_holder else state.due_at


def next_ask(state: Candidacy, now: float, wall: datetime) -> tuple[Candidacy, Ask | None]:
    """Return the request to send now, if one is due, and the state after sending it."""
    timing = state.tenure.timing
    if now >= state.due_at:
        return _ask_for_lease(state, now, wall)
    if state.doubted_holder and now >= state.pod_due_at:
        waiting = replace(state, pod_due_at=now + timing.retry_period_seconds)
        return waiting, Ask(AskKind.LOOK_AT_POD, now, holder=state.doubted_holder)
    return state, None


def _ask_for_lease(state: Candidacy, now: float, wall: datetime) -> tuple[Candidacy, Ask]:
    timing = state.tenure.timing
    move = Move.WAIT if state.must_look else election.decide(state.tenure, now)
    asking = replace(state, must_look=True, newest_at=now, due_at=now + _patience_seconds(state, now))
    if move is Move.WAIT:
        return asking, Ask(AskKind.LOOK, now)
    lease = election.claim(
        state.tenure.record,
        namespace=state.namespace,
        name=state.name,
        identity=state.tenure.identity,
        timing=timing,
        wall=wall,
    )
    tenure = election.with_claim_sent(state.tenure, lease["spec"]["renewTime"], now)
    claiming = replace(asking, tenure=tenure, claimed_version=state.version, claimed_at=now)
    kind = AskKind.CREATE if move is Move.CREATE else AskKind.REPLACE
    return claiming, Ask(kind, now, lease, state.version)


def _patience_seconds(state: Candidacy, now: float) -> float:
    """Return the seconds to wait for an answer before another request is sent.

    The less time a leader has left, the shorter they are: the API server may return in its last seconds.
    """
    timing = state.tenure.timing
    if state.is_suspended(now):
        return timing.short_pause_seconds
    if not state.tenure.leads(now):
        return timing.second_attempt_seconds
    seconds_left = state.tenure.leads_until - now
    return min(timing.second_attempt_seconds, max(timing.short_pause_seconds, seconds_left / 2))


def answered(state: Candidacy, ask: Ask, record: LeaseRecord | None, now: float) -> Candidacy:
    """Process an answer with the Lease; None if there is no Lease."""
    timing = state.tenure.timing
    tenure = election.with_answer(state.tenure, record, asked_at=ask.sent_at, now=now)
    seen = replace(state, tenure=tenure, must_look=False)
    if tenure.leads_until > state.tenure.leads_until:
        sent_at = tenure.leads_until - timing.renew_deadline_seconds
        return replace(seen, due_at=max(now, sent_at + timing.retry_period_seconds))
    has_claimed = seen.claimed_version == seen.version and seen.claimed_at >= ask.sent_at
    is_look = ask.kind is AskKind.LOOK
    if is_look and not has_claimed and election.decide(tenure, now) is not Move.WAIT:
        return replace(seen, due_at=now)
    return _paused(seen, ask, now)


def refused(state: Candidacy, ask: Ask, now: float) -> Candidacy:
    """Process the refusal of a write because the Lease changed: read it at once, unless the change was
    already seen."""
    if state.version == ask.version:
        return replace(state, must_look=True, due_at=now)
    return _paused(state, ask, now)


def failed(state: Candidacy, ask: Ask, now: float) -> Candidacy:
    """Process an error, or a missing answer."""
    if ask.kind is AskKind.LOOK_AT_POD:
        return replace(state, pod_due_at=ask.sent_at + state.tenure.timing.retry_period_seconds)
    return _paused(state, ask, now)


def pod_answered(state: Candidacy, ask: Ask, pod: Object | None, now: float) -> Candidacy:
    """Process the Pod of a holder; None, for no such Pod, proves nothing."""
    seen = replace(state, pod_due_at=ask.sent_at + state.tenure.timing.short_pause_seconds)
    if pod is None or not has_ended(pod, ask.holder):
        return seen
    return replace(seen, tenure=replace(state.tenure, ended_holder=ask.holder), due_at=now)


def suspended(state: Candidacy, now: float) -> Candidacy:
    """Stop leading, regardless of answers to earlier requests, and read the Lease at once."""
    return replace(state, tenure=election.resigned(state.tenure), must_look=True, due_at=now)


def _paused(state: Candidacy, ask: Ask, now: float) -> Candidacy:
    """Wait until the next request is due, unless a newer one is in progress."""
    if ask.sent_at < state.newest_at:
        return state
    timing = state.tenure.timing
    pause_seconds = timing.retry_period_seconds
    if state.is_suspended(now):
        pause_seconds = timing.short_pause_seconds
    elif not state.tenure.leads(now):
        pause_seconds *= 1 + state.spread
    return replace(state, due_at=min(state.due_at, ask.sent_at + pause_seconds, _free_at(state, now)))


def _free_at(state: Candidacy, now: float) -> float:
    """Return when another candidate's Lease may be taken, if that is in the future."""
    observation = state.tenure.observation
    if observation is None or state.tenure.leads(now) or observation.free_at <= now:
        return math.inf
    return observation.free_at
