"""Spans at a stand-in for a collector, sent by OpenTelemetry's SDK."""

from __future__ import annotations

import gzip
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from queue import Queue

import pytest
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest
from opentelemetry.proto.trace.v1.trace_pb2 import ResourceSpans

from crds.trace import JOB_SPAN, span_id, trace_id
from reconcilers.tracing.export import Collector
from reconcilers.tracing.spans import spans_of
from tests.cli.troubled import at, troubled_job, troubled_workers

UID = "7c1b5a0e-53b1-4f0e-9d55-0d6f3d2a9c11"
pytestmark = pytest.mark.real


def test_collector_gets_the_parts_of_a_recovery(monkeypatch: pytest.MonkeyPatch) -> None:
    received: Queue[ResourceSpans] = Queue()

    class StandIn(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            body = self.rfile.read(int(self.headers["Content-Length"]))
            body = gzip.decompress(body) if self.headers.get("Content-Encoding") == "gzip" else body
            for each in ExportTraceServiceRequest.FromString(body).resource_spans:
                received.put(each)
            self.send_response(200)
            self.end_headers()

        def log_message(self, *_: object) -> None: ...

    server = ThreadingHTTPServer(("127.0.0.1", 0), StandIn)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_ENDPOINT", f"http://127.0.0.1:{server.server_port}")
    monkeypatch.setenv("OTEL_BSP_SCHEDULE_DELAY", "50")
    workers = troubled_workers()
    for worker in workers:
        marks = {"seen": at(150.2), "joined": at(150.5), "started": at(151)}
        worker["status"]["agent"]["start"] = {"round": 3, **marks}
    try:
        Collector().send(UID, [each for each in spans_of(troubled_job(), workers) if each.end is not None])
        batch = received.get(timeout=30)
    finally:
        server.shutdown()
        server.server_close()
    spans = {span.name: span for scope in batch.scope_spans for span in scope.spans}
    whole, part = spans["recovery from NodeLost"], spans["stop"]
    assert {int.from_bytes(span.trace_id, "big") for span in spans.values()} == {trace_id(UID)}
    assert int.from_bytes(whole.parent_span_id, "big") == span_id(UID, JOB_SPAN)
    assert part.parent_span_id == whole.span_id
    assert (part.end_time_unix_nano - part.start_time_unix_nano) / 1e9 == pytest.approx(0.3)
    assert {"publish", "observe", "stop", "start", "first step"} <= spans.keys()
    assert "service.name" in {each.key for each in batch.resource.attributes}
