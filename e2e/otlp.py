"""A stand-in for an OpenTelemetry collector: OTLP over HTTP, as far as its clients send traces.

https://opentelemetry.io/docs/specs/otlp/#otlphttp
"""

from __future__ import annotations

import gzip
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from queue import Queue

from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest
from opentelemetry.proto.trace.v1.trace_pb2 import ResourceSpans


class StandInCollector:
    """Received spans, and the address at which the collector listens.

    Args:
        url: for `OTEL_EXPORTER_OTLP_ENDPOINT`.
    """

    def __init__(self, url: str) -> None:
        self.url = url
        self.received: Queue[ResourceSpans] = Queue()

    def take(self, body: bytes) -> None:
        """Take in the body of a request."""
        for each in ExportTraceServiceRequest.FromString(body).resource_spans:
            self.received.put(each)


@contextmanager
def stand_in_collector() -> Iterator[StandInCollector]:
    """Serve a collector at a free port of this machine."""

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            body = self.rfile.read(int(self.headers["Content-Length"]))
            collector.take(gzip.decompress(body) if self.headers.get("Content-Encoding") == "gzip" else body)
            self.send_response(200)
            self.end_headers()

        def log_message(self, *_: object) -> None: ...

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    collector = StandInCollector(f"http://127.0.0.1:{server.server_port}")
    serving = threading.Thread(target=server.serve_forever, daemon=True)
    serving.start()
    try:
        yield collector
    finally:
        server.shutdown()
        serving.join()
        server.server_close()
