"""Whose Lease it is, as decisions without I/O.

Two rules keep leaders from overlapping. A holder counts its time from *before* it sent the write that
renewed the Lease, and stops leading `renew_deadline` after that. A candidate counts from *after* it saw
the Lease change, and takes it no sooner than the lease duration after that. Both look at their own
monotonic clock only, never at the times written in the Lease. So as long as the deadline is shorter than
the duration, the holder has stopped before a candidate may start, whatever the network does.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from datetime import UTC, datetime
from enum import Enum

from controller.resources import LEASES, Object


@dataclass(frozen=True)
class ElectionTiming:
    """Kubernetes' own defaults."""

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
    def call_timeout_seconds(self) -> float:
        """Short enough that a call that hangs leaves room for another within the deadline."""
        return max(self.renew_deadline_seconds / 3, 0.5 * self.retry_period_seconds)


@dataclass(frozen=True)
class Record:
    """What a Lease says. `seen` is the object it was read from."""

    holder: str
    duration_seconds: float
    transitions: int
    acquire_time: str | None
    resource_version: str
    seen: Object = field(compare=False, repr=False)


def read(lease: Object) -> Record:
    spec = lease.get("spec") or {}
    return Record(
        holder=spec.get("holderIdentity") or "",
        duration_seconds=float(spec.get("leaseDurationSeconds") or 0),
        transitions=int(spec.get("leaseTransitions") or 0),
        acquire_time=spec.get("acquireTime"),
        resource_version=str(lease["metadata"].get("resourceVersion", "")),
        seen=lease,
    )


@dataclass(frozen=True)
class Observation:
    """The Lease as last seen (None: there is none), and when anyone else may take it."""

    record: Record | None
    free_at: float
    last_holder: str


def observe(previous: Observation | None, record: Record | None, now: float) -> Observation:
    """`now` is when the answer was in hand: the change happened before that."""
    if previous is not None and record == previous.record:
        return previous
    if record is None:
        # Someone deleted it; whoever held it may still believe to lead until its time is over.
        if previous is None:
            return Observation(None, now, "")
        return Observation(None, previous.free_at, previous.last_holder)
    if not record.holder:
        return Observation(record, now, "")
    return Observation(record, now + record.duration_seconds, record.holder)


class Move(Enum):
    CREATE = "create"
    TAKE = "take"
    RENEW = "renew"
    WAIT = "wait"


def decide(observation: Observation, identity: str, now: float) -> Move:
    record = observation.record
    ours = observation.last_holder == identity
    if record is None:
        return Move.CREATE if ours or now >= observation.free_at else Move.WAIT
    if ours:
        return Move.RENEW
    return Move.TAKE if now >= observation.free_at else Move.WAIT


def claim(
    record: Record | None, *, namespace: str, name: str, identity: str, timing: ElectionTiming, wall: datetime
) -> Object:
    """The Lease that makes `identity` its holder; keeps what others put on the object."""
    renewed = record is not None and record.holder == identity
    spec = {
        "holderIdentity": identity,
        "leaseDurationSeconds": math.ceil(timing.lease_duration_seconds),
        "acquireTime": record.acquire_time if renewed and record else micro_time(wall),
        "renewTime": micro_time(wall),
        "leaseTransitions": 0 if record is None else record.transitions + (0 if renewed else 1),
    }
    return _lease(record, namespace, name, spec)


def released(record: Record, *, namespace: str, name: str, wall: datetime) -> Object:
    """The Lease that anyone may take at once."""
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


def _lease(record: Record | None, namespace: str, name: str, spec: Object) -> Object:
    metadata = {"namespace": namespace, "name": name} if record is None else record.seen["metadata"]
    return {"apiVersion": LEASES.api_version, "kind": LEASES.kind, "metadata": metadata, "spec": spec}
