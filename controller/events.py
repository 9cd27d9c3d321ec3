"""Tells people what happened, as core/v1 Events that plain `kubectl describe` shows.

`event` only decides and notes; a task writes. So recording never waits, never fails a reconcile, and a
burst that comes faster than the server writes costs one write with the final count.
"""

from __future__ import annotations

import asyncio
import logging
import socket
import uuid
from collections import OrderedDict
from datetime import UTC, datetime
from typing import Literal

from controller import clock
from controller.backoff import Backoff
from controller.client import Client
from controller.correlation import Correlator, Occurrence, Series, Subject
from controller.errors import NamespaceTerminating, NotFound, Unavailable
from controller.resources import EVENTS, Object
from controller.wording import shortened

log = logging.getLogger(__name__)

EventType = Literal["Normal", "Warning"]

_MESSAGE_LIMIT = 1024
_NAME_LIMIT = 253
_PENDING_LIMIT = 1000
_ATTEMPTS = 12
"""With waits up to ten seconds: an event outlives an API outage of about a minute and a half."""


class EventRecorder:
    """Note events with `event`; `run` writes them."""

    def __init__(self, client: Client, component: str) -> None:
        self._client = client
        self._component = component
        self._instance = socket.gethostname()[:128]
        self._correlator = Correlator()
        self._pending: OrderedDict[int, Series] = OrderedDict()
        self._wake = asyncio.Event()
        self._idle = asyncio.Event()
        self._idle.set()

    def event(self, obj: Object, type: EventType, reason: str, message: str) -> None:
        """Notes that `reason` (CamelCase, one word) happened to `obj`. Never waits, never raises."""
        try:
            occurrence = Occurrence(_subject(obj), type, reason, shortened(message, _MESSAGE_LIMIT))
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
        if id(series) not in self._pending and len(self._pending) >= _PENDING_LIMIT:
            log.warning("event dropped: %d wait already reason=%s", _PENDING_LIMIT, reason)
            return
        self._pending[id(series)] = series  # holds the series, so its id is not given to another
        self._idle.clear()
        self._wake.set()

    async def run(self) -> None:
        """Writes until cancelled."""
        while True:
            await self._wake.wait()
            self._wake.clear()
            while self._pending:
                _, series = self._pending.popitem(last=False)
                await self._write_patiently(series)
            self._idle.set()

    async def flush(self, timeout_seconds: float) -> None:
        """Until all is written, or the time is over."""
        try:
            async with asyncio.timeout(timeout_seconds):
                await self._idle.wait()
        except TimeoutError:
            log.warning("events not written in time count=%d", len(self._pending) + 1)

    async def _write_patiently(self, series: Series) -> None:
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
                return  # nobody is left there to read it
            except Exception as error:  # also what cannot be written as JSON: the next one can
                _log_dropped(series, error)
                return

    async def _write(self, series: Series) -> None:
        namespace = series.subject.namespace or "default"
        if series.written_as is not None:
            patch = {"count": series.count, "lastTimestamp": series.last_time, "message": series.message}
            try:
                await self._client.patch(EVENTS, series.written_as, patch, namespace)
                return
            except NotFound:  # Events live for an hour; a new one starts the count again
                series.written_as = None
                series.count = 1
                series.first_time = series.last_time
        name = _event_name(series.subject.name)
        await self._client.create(EVENTS, self._body(series, name, namespace))
        series.written_as = name

    def _body(self, series: Series, name: str, namespace: str) -> Object:
        subject = series.subject
        involved = {
            "apiVersion": subject.api_version,
            "kind": subject.kind,
            "name": subject.name,
            "uid": subject.uid,
        }
        if subject.namespace:
            involved["namespace"] = subject.namespace
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
            "source": {"component": self._component},
            "reportingComponent": self._component,
            "reportingInstance": self._instance,
        }


def _subject(obj: Object) -> Subject:
    metadata = obj["metadata"]
    return Subject(
        obj["apiVersion"], obj["kind"], metadata.get("namespace"), metadata["name"], metadata.get("uid", "")
    )


def _event_name(subject_name: str) -> str:
    suffix = uuid.uuid4().hex[:16]
    return f"{subject_name[: _NAME_LIMIT - len(suffix) - 1].rstrip('.-')}.{suffix}"


def _log_dropped(series: Series, error: Exception) -> None:
    log.warning(
        "event not written object=%s/%s reason=%s error=%s",
        series.subject.namespace,
        series.subject.name,
        series.reason,
        error,
    )
