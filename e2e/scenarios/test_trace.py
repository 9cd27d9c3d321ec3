"""A kill's parts in a job's trace, for Perfetto and at a collector; the script knows nothing of dlr."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from queue import Empty
from typing import Any

import pytest
from opentelemetry.proto.trace.v1.trace_pb2 import ResourceSpans

from crds.trace import ENV_ENDPOINT, trace_id
from e2e.bare_venv import BareVenv
from e2e.cluster import Capability, Cluster
from e2e.conftest import started
from e2e.observation import Observation
from e2e.otlp import StandInCollector, stand_in_collector
from e2e.strangers import SCRIPTS, Stranger
from reconcilers.tracing.spans import PARTS

EPOCHS = "300"

pytestmark = [
    pytest.mark.needs(capability)
    for capability in (Capability.CONTROL_PLANE, Capability.STORAGE, Capability.NODE_PROCESSES)
]


@pytest.fixture(scope="module")
def collector() -> Iterator[StandInCollector]:
    with stand_in_collector() as collector:
        yield collector


@pytest.fixture(scope="module")
def cluster(request: pytest.FixtureRequest, collector: StandInCollector) -> Iterator[Cluster]:
    """A cluster whose controller has the collector in its environment."""
    with pytest.MonkeyPatch.context() as environment:
        environment.setenv(ENV_ENDPOINT, collector.url)
        environment.setenv("OTEL_BSP_SCHEDULE_DELAY", "200")
        yield from started(request, 2)


def test_parts_of_a_kill_are_in_the_trace_and_at_the_collector(
    cluster: Cluster, observation: Observation, collector: StandInCollector, tmp_path: Path
) -> None:
    job = Stranger(cluster, observation, "ddp")
    command = ["torchrun", str(SCRIPTS / "ddp.py"), EPOCHS, "--snapshot", str(job.snapshot)]
    job.submit(command, workers=2, variables={"PATH": BareVenv(tmp_path / "venv").path})
    job.survive_a_kill(victim=1)
    uid = observation.job("ddp")["metadata"]["uid"]

    trace = json.loads(cluster.dlr("job", "trace", "ddp", "-n", observation.namespace))
    # The controller may record a failure and publish the next world in one look: a part that is a moment.
    lengths = {each["name"]: each.get("dur", 0) for each in trace["traceEvents"] if each["ph"] in "Xi"}
    print({name: f"{lengths[name] / 1000:.0f} ms" for name in PARTS if name in lengths})
    assert {*PARTS} <= lengths.keys()
    whole = lengths["recovery from Killed"]
    assert sum(lengths[name] for name in PARTS) == pytest.approx(whole, abs=len(PARTS))

    sent: dict[str, Any] = {}

    def has_arrived() -> bool:
        with suppress(Empty):
            while True:
                sent.update(spans_of_job(collector.received.get_nowait(), uid))
        return {*PARTS, "recovery from Killed"} <= sent.keys()

    observation.wait_for("the recovery's parts at the collector", has_arrived)
    assert {sent[name].parent_span_id for name in PARTS} == {sent["recovery from Killed"].span_id}


def spans_of_job(batch: ResourceSpans, uid: str) -> dict[str, Any]:
    """Return the job's spans by name."""
    of_job = trace_id(uid).to_bytes(16, "big")
    return {span.name: span for each in batch.scope_spans for span in each.spans if span.trace_id == of_job}
