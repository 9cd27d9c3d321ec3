"""Which events become one, and which are too many: the decisions behind the recorder, without I/O.

Three steps, after the idea of client-go's correlator. Too many similar events (same object, type and
reason, other messages) become one combined event. The same event again raises the count of the first.
And each reason of an object has a token bucket, so that no loop can flood the cluster's storage, and none
can drown what is told but once.
"""

from __future__ import annotations

from collections import OrderedDict
from dataclasses import dataclass, field
from typing import Generic, TypeVar

SIMILAR_LIMIT = 4
"""Of one reason. What goes wrong again and again has three reasons or four: fewer than 20 Events in all."""
SIMILAR_WINDOW_SECONDS = 600.0
COMBINED_PREFIX = "(combined from similar events): "
BUCKET_BURST = 25
BUCKET_REFILL_SECONDS = 300.0
REMEMBERED = 4096

V = TypeVar("V")


@dataclass(frozen=True)
class Subject:
    """The object an event is about."""

    api_version: str
    kind: str
    namespace: str | None
    name: str
    uid: str


@dataclass(frozen=True)
class Occurrence:
    subject: Subject
    type: str
    reason: str
    message: str


@dataclass
class Series:
    """One Event object on the server, and what it should say by now."""

    subject: Subject
    type: str
    reason: str
    message: str
    count: int = 0
    first_time: str = ""
    last_time: str = ""
    written_as: str | None = None
    """The Event's name, once the server has it."""


@dataclass
class _Similar:
    last: float
    messages: set[str] = field(default_factory=set)


@dataclass
class _Bucket:
    tokens: float
    last: float


class Correlator:
    def __init__(self) -> None:
        self._similar: _Recent[tuple[Subject, str, str], _Similar] = _Recent()
        self._series: _Recent[Occurrence, Series] = _Recent()
        self._buckets: _Recent[tuple[Subject, str], _Bucket] = _Recent()

    def observe(self, occurrence: Occurrence, now: float) -> Series | None:
        """The series this belongs to, with its count raised; None if the object says it too often."""
        key = self._combine(occurrence, now)
        series = self._series.get(key)
        if series is None:
            series = Series(occurrence.subject, occurrence.type, occurrence.reason, occurrence.message)
            self._series.put(key, series)
        series.count += 1
        combined = key is not occurrence
        series.message = COMBINED_PREFIX + occurrence.message if combined else occurrence.message
        return series if self._take_token((occurrence.subject, occurrence.reason), now) else None

    def _combine(self, occurrence: Occurrence, now: float) -> Occurrence:
        """The occurrence itself, or the one that stands for all similar ones."""
        key = (occurrence.subject, occurrence.type, occurrence.reason)
        similar = self._similar.get(key)
        if similar is None or now - similar.last > SIMILAR_WINDOW_SECONDS:
            similar = _Similar(now)
            self._similar.put(key, similar)
        similar.last = now
        if occurrence.message in similar.messages:
            return occurrence
        if len(similar.messages) < SIMILAR_LIMIT:
            similar.messages.add(occurrence.message)
            return occurrence
        return Occurrence(occurrence.subject, occurrence.type, occurrence.reason, COMBINED_PREFIX)

    def _take_token(self, key: tuple[Subject, str], now: float) -> bool:
        bucket = self._buckets.get(key)
        if bucket is None:
            bucket = _Bucket(BUCKET_BURST, now)
            self._buckets.put(key, bucket)
        bucket.tokens = min(BUCKET_BURST, bucket.tokens + (now - bucket.last) / BUCKET_REFILL_SECONDS)
        bucket.last = now
        if bucket.tokens < 1:
            return False
        bucket.tokens -= 1
        return True


K = TypeVar("K")


class _Recent(Generic[K, V]):
    """The most recently used entries, at most `REMEMBERED`."""

    def __init__(self) -> None:
        self._entries: OrderedDict[K, V] = OrderedDict()

    def get(self, key: K) -> V | None:
        value = self._entries.get(key)
        if value is not None:
            self._entries.move_to_end(key)
        return value

    def put(self, key: K, value: V) -> None:
        self._entries[key] = value
        if len(self._entries) > REMEMBERED:
            self._entries.popitem(last=False)
