"""What a candidate asks the API server for, and when: a machine without I/O.

`next_ask` says what to send now, and `next_at` when to ask again. `answered`, `refused`, `failed` and
`pod_answered` take in what came of it, in any order and however late. One that is not answered goes on until
its answer would be of no use, and another is sent beside it.
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
    """The Lease to write; empty for a look."""
    version: str = ""
    """The version of the Lease, as seen before that write; empty if there was none."""
    holder: str = ""
    """The holder whose Pod is to be looked at."""


@dataclass(frozen=True)
class Candidacy:
    """What a candidate has learnt, and what it has asked."""

    namespace: str
    name: str
    tenure: Tenure
    spread: float = 0.0
    """Share by which the looks of a standby come later, so that several do not come together."""
    must_look: bool = True
    """Whether nobody knows what the Lease says: a write is not answered, or was refused."""
    due_at: float = -math.inf
    """When the next request about the Lease is due."""
    newest_at: float = -math.inf
    """When the newest request about the Lease was sent."""
    claimed_version: str = ""
    claimed_at: float = -math.inf
    pod_due_at: float = -math.inf

    @property
    def version(self) -> str:
        """The version of the Lease as last seen; empty if there is none."""
        return self.tenure.record.resource_version if self.tenure.record else ""

    def is_suspended(self, now: float) -> bool:
        """Whether it leads no more for want of answers alone."""
        return self.tenure.is_holder and not self.tenure.leads(now)

    @property
    def doubted_holder(self) -> str:
        """The holder whose container may have ended; empty if there is none to look at."""
        record = self.tenure.record
        if record is None or record.holder in (self.tenure.identity, self.tenure.ended_holder):
            return ""
        return record.holder if pod_of(record.holder) else ""


def next_at(state: Candidacy) -> float:
    """Return when there is something to ask."""
    return min(state.due_at, state.pod_due_at) if state.doubted_holder else state.due_at


def next_ask(state: Candidacy, now: float, wall: datetime) -> tuple[Candidacy, Ask | None]:
    """Return what to send now, if anything is due, and the state in which that is sent."""
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
    """Return how long to wait for an answer until another request begins beside it.

    The less time a leader has left, the shorter: the API server may come back in its last seconds.
    """
    timing = state.tenure.timing
    if state.is_suspended(now):
        return timing.short_pause_seconds
    if not state.tenure.leads(now):
        return timing.second_attempt_seconds
    seconds_left = state.tenure.leads_until - now
    return min(timing.second_attempt_seconds, max(timing.short_pause_seconds, seconds_left / 2))


def answered(state: Candidacy, ask: Ask, record: LeaseRecord | None, now: float) -> Candidacy:
    """Take in the Lease as an answer has it; None if there is no Lease."""
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
    """Take in that a write found the Lease changed: look at once, if what came first is not in hand."""
    if state.version == ask.version:
        return replace(state, must_look=True, due_at=now)
    return _paused(state, ask, now)


def failed(state: Candidacy, ask: Ask, now: float) -> Candidacy:
    """Take in that there was no answer, or an error."""
    if ask.kind is AskKind.LOOK_AT_POD:
        return replace(state, pod_due_at=ask.sent_at + state.tenure.timing.retry_period_seconds)
    return _paused(state, ask, now)


def pod_answered(state: Candidacy, ask: Ask, pod: Object | None, now: float) -> Candidacy:
    """Take in the Pod of a holder; None, if there is no such Pod, proves nothing."""
    seen = replace(state, pod_due_at=ask.sent_at + state.tenure.timing.short_pause_seconds)
    if pod is None or not has_ended(pod, ask.holder):
        return seen
    return replace(seen, tenure=replace(state.tenure, ended_holder=ask.holder), due_at=now)


def suspended(state: Candidacy, now: float) -> Candidacy:
    """Lead no more, whatever answers to earlier requests are still to come, and look at once."""
    return replace(state, tenure=election.resigned(state.tenure), must_look=True, due_at=now)


def _paused(state: Candidacy, ask: Ask, now: float) -> Candidacy:
    """Wait until the next request is due, unless a newer one is under way."""
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
    """Return when another's Lease may be taken, if that is still to come."""
    observation = state.tenure.observation
    if observation is None or state.tenure.leads(now) or observation.free_at <= now:
        return math.inf
    return observation.free_at
