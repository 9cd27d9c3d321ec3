"""Leader election with a Lease, as decisions without I/O. `candidacy.py` has the requests and their times.

A holder counts its time from *before* it sent the write that renewed the Lease, and stops leading
`renew_deadline_seconds` after that. A candidate counts from *after* it saw the Lease change, and takes it no
sooner than the lease duration after that. Each uses its own monotonic clock. As the deadline is shorter
than the duration, leaders never overlap. So a renewal counts however late its answer arrives, and
whichever answer shows it.

The Lease must not be deleted while a request to create it is in progress, which would create it a second
time beside the leader.

There are two exceptions. A holder whose container has ended is replaced at once (`container_end.py`). And
a candidate does not count silence in a time when it could not reach the API server: after an outage it
waits a whole lease duration again, so that the holder goes on.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from enum import Enum

from controller.resources import LEASES, Object
from controller.store import version_number


@dataclass(frozen=True)
class ElectionTiming:
    """Times of leader election; the defaults are Kubernetes'."""

    lease_duration_seconds: float = 15.0
    renew_deadline_seconds: float = 10.0
    retry_period_seconds: float = 2.0

    def __post_init__(self) -> None:
        if not self.lease_duration_seconds > self.renew_deadline_seconds > self.retry_period_seconds > 0:
            raise ValueError(
                "leader election needs lease duration > renew deadline > retry period > 0, not "
                f"{self.lease_duration_seconds:g} / {self.renew_deadline_seconds:g} / "
                f"{self.retry_period_seconds:g} s"
            )

    @property
    def second_attempt_seconds(self) -> float:
        """Age of an unanswered attempt at which another one is sent, early enough for the deadline."""
        return max(self.renew_deadline_seconds / 3, 0.5 * self.retry_period_seconds)

    @property
    def short_pause_seconds(self) -> float:
        """Pause between two reads while there is no leader: of the holder's Pod, and of the own Lease after
        an outage."""
        return self.retry_period_seconds / 4


@dataclass(frozen=True)
class LeaseRecord:
    """Content of a Lease. `seen` is the object it was read from."""

    holder: str
    duration_seconds: float
    transitions: int
    acquire_time: str | None
    renew_time: str | None
    resource_version: str
    seen: Object = field(compare=False, repr=False)


def read(lease: Object) -> LeaseRecord:
    spec = lease.get("spec") or {}
    return LeaseRecord(
        holder=spec.get("holderIdentity") or "",
        duration_seconds=float(spec.get("leaseDurationSeconds") or 0),
        transitions=int(spec.get("leaseTransitions") or 0),
        acquire_time=spec.get("acquireTime"),
        renew_time=spec.get("renewTime"),
        resource_version=str(lease["metadata"].get("resourceVersion", "")),
        seen=lease,
    )


@dataclass(frozen=True)
class LeaseObservation:
    """Lease as last seen (None: there is none), and when others may take it."""

    record: LeaseRecord | None
    free_at: float
    last_holder: str


def observe(
    previous: LeaseObservation | None,
    record: LeaseRecord | None,
    now: float,
    timing: ElectionTiming,
    *,
    after_outage: bool = False,
) -> LeaseObservation:
    """Return the observation of the Lease after an answer.

    Args:
        now: time of the answer; the change happened before.
        timing: timing of this candidate, assumed for unseen ones.
        after_outage: whether answers were missing for too long to see a renewal; the time restarts.
    """
    if previous is not None and record == previous.record and (record is None or not after_outage):
        return previous
    if record is None:
        if previous is None:
            return LeaseObservation(None, now, "")
        assert previous.record is not None
        # It was deleted. Another candidate may have taken or renewed it unseen, and still lead for a while,
        # even if it was free when last seen.
        seconds = max(previous.record.duration_seconds, timing.lease_duration_seconds)
        return LeaseObservation(None, now + seconds, previous.last_holder)
    if not record.holder:
        return LeaseObservation(record, now, "")
    return LeaseObservation(record, now + record.duration_seconds, record.holder)


@dataclass(frozen=True)
class Tenure:
    """State of the Lease as a candidate sees it, and the end of its leadership."""

    identity: str
    timing: ElectionTiming
    observation: LeaseObservation | None = None
    answered_at: float = -math.inf
    """Time of the newest answer."""
    sent: Mapping[str, float] = field(default_factory=dict)
    """Send times of own writes that may still show in the Lease, by renewTime."""
    leads_until: float = -math.inf
    ended_holder: str = ""
    """Newest holder whose container has certainly ended."""

    @property
    def record(self) -> LeaseRecord | None:
        """The Lease as last seen."""
        return self.observation.record if self.observation else None

    @property
    def is_holder(self) -> bool:
        """Whether the Lease, as last seen, names this candidate, so that nobody else has held it since."""
        return self.record is not None and self.record.holder == self.identity

    def leads(self, now: float) -> bool:
        return now < self.leads_until


def with_claim_sent(tenure: Tenure, renew_time: str, now: float) -> Tenure:
    """Note an own write just before it is sent."""
    oldest = now - tenure.timing.renew_deadline_seconds
    sent = {text: at for text, at in tenure.sent.items() if at > oldest}
    sent.setdefault(renew_time, now)  # a wall clock set back may repeat a time: the first counts
    return replace(tenure, sent=sent)


def with_answer(tenure: Tenure, record: LeaseRecord | None, *, asked_at: float, now: float) -> Tenure:
    """Process an answer with the Lease. Answers may arrive late, and in any order.

    Args:
        record: None if there is no Lease.
        asked_at: time when the request was sent.
        now: time of the answer.
    """
    if not _is_news(tenure, record, asked_at):
        return tenure
    observation = observe(
        tenure.observation,
        record,
        now,
        tenure.timing,
        after_outage=now - tenure.answered_at > tenure.timing.renew_deadline_seconds,
    )
    seen = replace(tenure, observation=observation, answered_at=now)
    if record is None:
        return seen
    if record.holder != tenure.identity:
        return resigned(seen)
    sent_at = tenure.sent.get(record.renew_time or "", -math.inf)
    return replace(seen, leads_until=max(tenure.leads_until, sent_at + tenure.timing.renew_deadline_seconds))


def resigned(tenure: Tenure) -> Tenure:
    """Stop leading, regardless of answers to earlier writes."""
    return replace(tenure, sent={}, leads_until=-math.inf)


def _is_news(tenure: Tenure, record: LeaseRecord | None, asked_at: float) -> bool:
    """Return whether an answer is newer than the last: it was requested later, or its version is not older.

    Versions restart lower after etcd was restored from a backup, so the time is compared first.
    """
    before = tenure.observation.record if tenure.observation else None
    if asked_at >= tenure.answered_at:
        return True
    if record is None or before is None:
        return record is not None
    old, new = version_number(before.resource_version), version_number(record.resource_version)
    return old is None or new is None or new >= old


class Move(Enum):
    CREATE = "create"
    TAKE = "take"
    RENEW = "renew"
    WAIT = "wait"


def decide(tenure: Tenure, now: float) -> Move:
    """Decide what to do about the Lease as last seen."""
    observation, record = tenure.observation, tenure.record
    if observation is None:
        return Move.WAIT
    if record is None:
        return Move.CREATE if tenure.leads(now) or now >= observation.free_at else Move.WAIT
    if tenure.is_holder:
        return Move.RENEW
    has_ended = record.holder == tenure.ended_holder
    return Move.TAKE if has_ended or now >= observation.free_at else Move.WAIT


def claim(
    record: LeaseRecord | None,
    *,
    namespace: str,
    name: str,
    identity: str,
    timing: ElectionTiming,
    wall: datetime,
) -> Object:
    """Return the Lease that makes `identity` its holder, with all metadata that others set."""
    renewed = record is not None and record.holder == identity
    spec = {
        "holderIdentity": identity,
        "leaseDurationSeconds": math.ceil(timing.lease_duration_seconds),
        "acquireTime": record.acquire_time if renewed and record else micro_time(wall),
        "renewTime": micro_time(wall),
        "leaseTransitions": 0 if record is None else record.transitions + (0 if renewed else 1),
    }
    return _lease(record, namespace, name, spec)


def released(record: LeaseRecord, *, namespace: str, name: str, wall: datetime) -> Object:
    """Return the Lease that anyone may take at once."""
    spec = {
        "holderIdentity": "",
        "leaseDurationSeconds": 1,
        "acquireTime": micro_time(wall),
        "renewTime": micro_time(wall),
        "leaseTransitions": record.transitions,
    }
    return _lease(record, namespace, name, spec)


def micro_time(wall: datetime) -> str:
    return wall.astimezone(UTC).strftime("%Y-%m-%dT%H:%M:%S.%fZ")


def _lease(record: LeaseRecord | None, namespace: str, name: str, spec: Object) -> Object:
    metadata = {"namespace": namespace, "name": name} if record is None else record.seen["metadata"]
    return LEASES.manifest(metadata, spec=spec)
