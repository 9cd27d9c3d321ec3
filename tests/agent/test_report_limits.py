"""Whatever a training process writes into its files, the CRD takes the agent's report."""

from __future__ import annotations

import json
from datetime import UTC, datetime
from typing import Any

from hypothesis import given
from hypothesis import strategies as st
from pydantic import TypeAdapter

import crds
from agent.environment import Environment
from agent.monitor.progress import _numbers
from agent.report.report import AgentFacts, ReportBody, whole
from crds.agent_report import (
    MAX_POINTS,
    Accelerators,
    AgentReport,
    AgentState,
    Departure,
    RoundProgress,
    Series,
    SeriesPoint,
    Slow,
    StepProgress,
)
from crds.progress_record import MAX_NUMBER_NAME, MAX_NUMBERS
from localcluster.builtin import components
from localcluster.schema import CompiledSchema

READER = TypeAdapter(AgentReport)
SCHEMA = next(each for each in crds.manifests() if each["spec"]["names"]["kind"] == "ElasticWorker")
WORKERS = CompiledSchema(
    SCHEMA["spec"]["versions"][0]["schema"]["openAPIV3Schema"], components(), custom=True
)
NOW = datetime(2026, 1, 1, tzinfo=UTC)

steps = st.integers(0, 2**63 - 1)
seconds = st.floats(allow_nan=False) | st.sampled_from([0.0, 1e308, float("inf"), -1.0])
names = st.binary(min_size=1, max_size=MAX_NUMBER_NAME)
numbers = st.lists(st.tuples(seconds, names), max_size=MAX_NUMBERS).map(
    lambda told: dict(_numbers([part for pair in told for part in pair]))
)
points = st.builds(SeriesPoint, steps, st.just(NOW), st.integers(0, 2**40), st.floats(0, 1e308), numbers)
reports = st.builds(
    ReportBody,
    state=st.sampled_from(AgentState),
    since=st.just(NOW),
    observed_round=st.integers(0, 2**62),
    progress=st.builds(StepProgress, steps, st.just(NOW), steps, st.floats(0, 1e308)),
    rounds=st.lists(
        st.builds(
            RoundProgress,
            st.integers(0, 2**62),
            steps,
            steps,
            st.floats(-1e308, 1e308),
            samples_per_step=st.integers(1, 2**63 - 1),
            non_finite_step=steps,
        ),
        max_size=2,
    ).map(tuple),
    departure=st.builds(Departure, st.integers(0, 9), steps),
    series=st.builds(
        lambda point, count: Series(1, (point,) * count, point), points, st.sampled_from([0, 1, MAX_POINTS])
    ),
    slow=st.builds(Slow, st.just(NOW), steps, st.floats(0, 1e308), st.floats(0, 1e308)),
)


@given(reports)
def test_the_crd_takes_what_an_agent_writes_of_any_numbers(report: ReportBody) -> None:
    me = Environment.__new__(Environment)
    known = {"incarnation": 1, "pod_uid": "u", "pod_ip": "10.0.0.1"}
    for name, value in known.items():
        object.__setattr__(me, name, value)
    facts = AgentFacts(2_222, 8, Accelerators("nvidia.com/gpu", 8, "x"))
    written = whole(me, facts, report, 1, {}).to_wire()
    said = _without_nulls(json.loads(json.dumps(written, allow_nan=False)))
    worker = {
        "apiVersion": "elastic.iml.github.io/v1alpha1",
        "kind": "ElasticWorker",
        "metadata": {"name": "w", "namespace": "n"},
        "spec": {"jobName": "j", "type": "worker", "index": 0, "incarnation": 1},
        "status": {"agent": said},
    }
    assert WORKERS.validate(worker) == []
    assert READER.validate_python(said).state == report.state


def _without_nulls(value: Any) -> Any:
    """As a merge patch leaves them out."""
    if isinstance(value, dict):
        return {key: _without_nulls(each) for key, each in value.items() if each is not None}
    return [*map(_without_nulls, value)] if isinstance(value, list) else value


def test_a_number_of_the_script_is_no_duration_by_its_name() -> None:
    point = SeriesPoint(1, NOW, 1, -1.0, {"drift_seconds": -0.5}).to_wire()
    assert (point["secondsPerStep"], point["numbers"]) == (0.0, {"drift_seconds": -0.5})
