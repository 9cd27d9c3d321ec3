"""The reconciler of jobs' traces: it sends each span once, some time after its end."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from datetime import datetime, timedelta
from typing import TypeAlias

from controller.reconciler import Request, Result
from controller.store import ObjectMemory
from reconcilers.observed.ownership import BY_OWNER
from reconcilers.runtime.tools import Tools, WithTools
from reconcilers.tracing.spans import TraceSpan, spans_of

SETTLED = timedelta(seconds=15)
"""Time after a span's end for the agents' reports on it, which come every few seconds."""


SendSpans: TypeAlias = Callable[[str, Iterable[TraceSpan]], None]
"""Function that sends the spans of a job, by its uid."""


class TracingReconciler(WithTools):
    """Sends the spans of jobs.

    A new leader sends those of all jobs again, under the same identifiers.

    Args:
        send: function that receives finished spans, and must not block.
    """

    def __init__(self, tools: Tools, send: SendSpans) -> None:
        super().__init__(tools)
        self._send = send
        self._sent: ObjectMemory[frozenset[str]] = self._jobs.memory()
        """Keys of spans that were sent, by job."""

    async def reconcile(self, request: Request) -> Result:
        """Reconcile the job of this name."""
        job = self._jobs.get(request.namespace, request.name)
        if job is None:
            return Result()
        uid = job["metadata"]["uid"]
        spans = spans_of(job, self._workers.by_index(BY_OWNER, uid))
        sent, now = self._sent.get(uid) or frozenset(), self._clock.now()
        due, wait_seconds = due_spans(spans, sent, now)
        self._send(uid, due)
        known = sent | {each.key for each in due}
        # Spans that the histories have dropped do not come back.
        self._sent.put(uid, known & {each.key for each in spans})
        return Result(wait_seconds)


def due_spans(
    spans: Iterable[TraceSpan], sent: frozenset[str], now: datetime
) -> tuple[list[TraceSpan], float | None]:
    """Return the spans to send now, and the seconds until the next; None without any."""
    # Subtracting first: an agent's time plus SETTLED may be beyond the last datetime.
    over = [
        (each, (each.end - now) + SETTLED) for each in spans if each.end is not None and each.key not in sent
    ]
    later = min((wait for _, wait in over if wait > timedelta()), default=None)
    return [
        each for each, wait in over if wait <= timedelta()
    ], None if later is None else later.total_seconds()
