"""Core/v1 Events, as shown by `kubectl describe`.

`Correlator` merges and limits events as client-go does: too many similar ones (same object, type and
reason) become one, a repeated one raises a count, and each reason of an object has a token bucket. `event`
only notes an event, and a task writes it, so recording never waits and never fails a reconcile.
"""

from __future__ import annotations

import asyncio
import logging
import socket
import uuid
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from functools import lru_cache
from typing import Literal

from controller import clock
from controller.backoff import Backoff
from controller.client import AsyncClient
from controller.errors import AlreadyExists, NamespaceTerminating, NotFound, Unavailable
from controller.resources import EVENTS, Object
from controller.wording import printable, shortened

SIMILAR_LIMIT = 4
"""Limit per reason. A recurring problem has three or four reasons: fewer than 20 Events in all."""
SIMILAR_WINDOW_SECONDS = 600.0
COMBINED_PREFIX = "(combined from similar events): "
BUCKET_BURST = 25
BUCKET_REFILL_SECONDS = 300.0
REMEMBERED = 4096


@dataclass(frozen=True)
class InvolvedObject:
    """Object that an event is about."""

    api_version: str
    kind: str
    namespace: str | None
    name: str
    uid: str
    field: str = ""
    """Path of the part of the object that the event is about, if any."""
    host: str = ""
    """Node on which it happened, if any."""


@dataclass(frozen=True)
class Occurrence:
    subject: InvolvedObject
    type: str
    reason: str
    message: str


@dataclass
class EventSeries:
    """One Event object on the server, with its current content."""

    subject: InvolvedObject
    type: str
    reason: str
    message: str
    count: int = 0
    first_time: str = ""
    last_time: str = ""
    name: str | None = None
    """Name of the Event, set at the first attempt to write it."""
    is_written: bool = False


@dataclass
class _Similar:
    last: float = 0.0
    messages: set[str] = field(default_factory=set)


@dataclass
class _Bucket:
    tokens: float = BUCKET_BURST
    last: float = 0.0


class Correlator:
    """Merges and limits events. It remembers at most `REMEMBERED` entries of each kind, the most recent
    ones."""

    def __init__(self, similar_limit: int = SIMILAR_LIMIT) -> None:
        self._similar_limit = similar_limit
        recent = lru_cache(REMEMBERED)
        self._similar = recent(lambda subject, type, reason: _Similar())
        self._series = recent(lambda key: EventSeries(key.subject, key.type, key.reason, key.message))
        self._buckets = recent(lambda subject, reason: _Bucket())

    def observe(self, occurrence: Occurrence, now: float) -> EventSeries | None:
        """Return the event's series, with its count raised; None if the object has too many events."""
        key = self._combine(occurrence, now)
        series: EventSeries = self._series(key)
        series.count += 1
        combined = key is not occurrence
        series.message = COMBINED_PREFIX + occurrence.message if combined else occurrence.message
        return series if self._take_token(occurrence, now) else None

    def _combine(self, occurrence: Occurrence, now: float) -> Occurrence:
        """Return the occurrence itself, or the one that represents all similar ones."""
        similar: _Similar = self._similar(occurrence.subject, occurrence.type, occurrence.reason)
        if now - similar.last > SIMILAR_WINDOW_SECONDS:
            similar.messages.clear()
        similar.last = now
        if occurrence.message in similar.messages or len(similar.messages) < self._similar_limit:
            similar.messages.add(occurrence.message)
            return occurrence
        return replace(occurrence, message=COMBINED_PREFIX)

    def _take_token(self, occurrence: Occurrence, now: float) -> bool:
        bucket: _Bucket = self._buckets(occurrence.subject, occurrence.reason)
        bucket.tokens = min(BUCKET_BURST, bucket.tokens + (now - bucket.last) / BUCKET_REFILL_SECONDS)
        bucket.last = now
        if bucket.tokens < 1:
            return False
        bucket.tokens -= 1
        return True


log = logging.getLogger(__name__)

EventType = Literal["Normal", "Warning"]

_MESSAGE_LIMIT = 1024
_NAME_LIMIT = 253
_PENDING_LIMIT = 1000
"""Events that may wait, per namespace."""
_ATTEMPTS = 12
"""Attempts to write an event. With waits up to ten seconds, it survives an API outage of about 90 s."""


class EventRecorder:
    """Recorder of events: `event` notes them, `run` writes them."""

    def __init__(self, client: AsyncClient, component: str, *, similar_limit: int = SIMILAR_LIMIT) -> None:
        self._client = client
        self._component = component
        self._instance = socket.gethostname()[:128]
        self._correlator = Correlator(similar_limit)
        self._pending: dict[str | None, dict[int, EventSeries]] = {}
        """Series to write, by namespace in turn order, then by id."""
        self._wake = asyncio.Event()
        self._idle = asyncio.Event()
        self._idle.set()

    def event(
        self, obj: Object, type: EventType, reason: str, message: str, *, host: str = "", field: str = ""
    ) -> None:
        """Note that `reason` (CamelCase, one word) happened to `obj`. Never waits, never raises."""
        try:
            occurrence = Occurrence(
                _subject(obj, field, host), type, reason, shortened(printable(message), _MESSAGE_LIMIT)
            )
        except (KeyError, TypeError) as error:
            log.error("event about something that is no object reason=%s error=%r", reason, error)
            return
        series = self._correlator.observe(occurrence, clock.monotonic())
        now = datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
        if series is None:
            log.debug("event held back: too many object=%s reason=%s", occurrence.subject.name, reason)
            return
        series.first_time = series.first_time or now
        series.last_time = now
        namespace = series.subject.namespace
        waiting = self._pending.setdefault(namespace, {})
        if id(series) not in waiting and len(waiting) >= _PENDING_LIMIT:
            log.warning("event dropped: %d wait already in %s reason=%s", _PENDING_LIMIT, namespace, reason)
            return
        waiting[id(series)] = series  # keeps the series alive, so that its id stays unique
        self._idle.clear()
        self._wake.set()

    async def run(self) -> None:
        """Write until cancelled."""
        while True:
            await self._wake.wait()
            self._wake.clear()
            while self._pending:
                await self._write_patiently(self._next())
            self._idle.set()

    def _next(self) -> EventSeries:
        """Take the oldest series of the namespace whose turn it is."""
        namespace, waiting = next(iter(self._pending.items()))
        del self._pending[namespace]
        series = waiting.pop(next(iter(waiting)))
        if waiting:
            self._pending[namespace] = waiting
        return series

    async def flush(self, timeout_seconds: float) -> None:
        """Wait until all events are written, or the time is over."""
        try:
            async with asyncio.timeout(timeout_seconds):
                await self._idle.wait()
        except TimeoutError:
            count = sum(map(len, self._pending.values())) + 1
            log.warning("events not written in time count=%d", count)

    async def _write_patiently(self, series: EventSeries) -> None:
        backoff = Backoff(base_seconds=0.5, cap_seconds=10.0)
        while True:
            try:
                await self._write(series)
                return
            except Unavailable as error:
                if backoff.failures + 1 >= _ATTEMPTS:
                    _log_dropped(series, error)
                    return
                await asyncio.sleep(backoff.next_seconds())
            except NamespaceTerminating:
                return  # nobody can read it there
            except Exception as error:  # also one that cannot be encoded as JSON
                _log_dropped(series, error)
                return

    async def _write(self, series: EventSeries) -> None:
        namespace = series.subject.namespace or "default"
        if series.name is not None and series.is_written:
            patch = {"count": series.count, "lastTimestamp": series.last_time, "message": series.message}
            try:
                await self._client.patch(EVENTS, series.name, patch, namespace)
                return
            except NotFound:  # Events expire after an hour; restart the count
                series.name, series.is_written = None, False
                series.count = 1
                series.first_time = series.last_time
        series.name = series.name or _event_name(series.subject.name)
        try:
            await self._client.create(EVENTS, self._body(series, series.name, namespace))
            series.is_written = True
        except AlreadyExists:  # an earlier attempt was stored, and its answer lost
            series.is_written = True
            await self._write(series)

    def _body(self, series: EventSeries, name: str, namespace: str) -> Object:
        subject = series.subject
        involved = {
            "apiVersion": subject.api_version,
            "kind": subject.kind,
            "name": subject.name,
            "uid": subject.uid,
        }
        if subject.namespace:
            involved["namespace"] = subject.namespace
        if subject.field:
            involved["fieldPath"] = subject.field
        return {
            "apiVersion": "v1",
            "kind": "Event",
            "metadata": {"name": name, "namespace": namespace},
            "involvedObject": involved,
            "type": series.type,
            "reason": series.reason,
            "message": series.message,
            "count": series.count,
            "firstTimestamp": series.first_time,
            "lastTimestamp": series.last_time,
            "source": {"component": self._component, **({"host": subject.host} if subject.host else {})},
            "reportingComponent": self._component,
            "reportingInstance": subject.host or self._instance,
        }


def _subject(obj: Object, field: str, host: str) -> InvolvedObject:
    metadata = obj["metadata"]
    name, namespace, uid = metadata["name"], metadata.get("namespace"), metadata.get("uid", "")
    return InvolvedObject(obj["apiVersion"], obj["kind"], namespace, name, uid, field, host)


def _event_name(subject_name: str) -> str:
    suffix = uuid.uuid4().hex[:16]
    return f"{subject_name[: _NAME_LIMIT - len(suffix) - 1].rstrip('.-')}.{suffix}"


def _log_dropped(series: EventSeries, error: Exception) -> None:
    log.warning(
        "event not written object=%s/%s reason=%s error=%s",
        series.subject.namespace,
        series.subject.name,
        series.reason,
        error,
    )
