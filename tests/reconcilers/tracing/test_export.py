"""Spans at a stand-in for a collector, sent by OpenTelemetry's SDK."""

from __future__ import annotations

import pytest

from crds.trace import ENV_ENDPOINT, JOB_SPAN, span_id, trace_id
from e2e.otlp import stand_in_collector
from reconcilers.tracing.export import Collector
from reconcilers.tracing.spans import spans_of
from tests.cli.troubled import at, troubled_job, troubled_workers

UID = "7c1b5a0e-53b1-4f0e-9d55-0d6f3d2a9c11"
pytestmark = pytest.mark.real


def test_collector_gets_the_parts_of_a_recovery(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OTEL_BSP_SCHEDULE_DELAY", "50")
    workers = troubled_workers()
    for worker in workers:
        marks = {"seen": at(150.2), "joined": at(150.5), "started": at(151)}
        worker["status"]["agent"]["start"] = {"round": 3, **marks}
    with stand_in_collector() as collector:
        monkeypatch.setenv(ENV_ENDPOINT, collector.url)
        Collector().send(UID, [each for each in spans_of(troubled_job(), workers) if each.end is not None])
        batch = collector.received.get(timeout=30)
    spans = {span.name: span for scope in batch.scope_spans for span in scope.spans}
    whole, part = spans["recovery from NodeLost"], spans["stop"]
    assert {int.from_bytes(span.trace_id, "big") for span in spans.values()} == {trace_id(UID)}
    assert int.from_bytes(whole.parent_span_id, "big") == span_id(UID, JOB_SPAN)
    assert part.parent_span_id == whole.span_id
    assert (part.end_time_unix_nano - part.start_time_unix_nano) / 1e9 == pytest.approx(0.3)
    assert {"publish", "observe", "stop", "start", "first step"} <= spans.keys()
    assert "service.name" in {each.key for each in batch.resource.attributes}
