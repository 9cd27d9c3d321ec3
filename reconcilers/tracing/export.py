"""Sends spans to a collector with OpenTelemetry's SDK, which only this module imports.

The SDK sends from a thread of its own and has a bounded queue: if the collector is down, spans are lost, and
looks at jobs go on. https://opentelemetry.io/docs/specs/otel/trace/sdk/#batching-processor
"""

from __future__ import annotations

from collections.abc import Iterable
from datetime import datetime

from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
from opentelemetry.sdk.resources import Resource
from opentelemetry.sdk.trace import ReadableSpan
from opentelemetry.sdk.trace.export import BatchSpanProcessor
from opentelemetry.trace import SpanContext, TraceFlags

from crds.trace import span_id, trace_id
from reconcilers.tracing.spans import TraceSpan

SERVICE = "dlr"


class Collector:
    """The collector of the environment (`OTEL_EXPORTER_OTLP_ENDPOINT` and related variables)."""

    def __init__(self) -> None:
        self._processor = BatchSpanProcessor(OTLPSpanExporter())
        self._resource = Resource({"service.name": SERVICE}).merge(Resource.create())

    def send(self, job_uid: str, spans: Iterable[TraceSpan]) -> None:
        """Queue spans that have ended."""
        for span in spans:
            self._processor.on_end(self._readable(job_uid, span))

    def _readable(self, job_uid: str, span: TraceSpan) -> ReadableSpan:
        return ReadableSpan(
            span.name,
            context=_context(job_uid, span.key),
            parent=_context(job_uid, span.parent) if span.parent else None,
            resource=self._resource,
            attributes={f"dlr.{name}": value for name, value in span.attributes.items()}
            | {"dlr.track": span.track},
            start_time=_nanoseconds(span.begin),
            end_time=_nanoseconds(span.end or span.begin),
        )


def _context(job_uid: str, key: str) -> SpanContext:
    return SpanContext(
        trace_id(job_uid), span_id(job_uid, key), is_remote=False, trace_flags=TraceFlags(TraceFlags.SAMPLED)
    )


def _nanoseconds(at: datetime) -> int:
    return int(at.timestamp() * 1e6) * 1_000
