"""A finding is written and read by one codec, and a NodeCheck's status has no more of it than it should."""

from __future__ import annotations

from datetime import UTC, datetime

from hypothesis import given
from hypothesis import strategies as st

from crds.actions import Action
from crds.findings import Cause, Finding, Verdict
from crds.nodecheck import NodeCheck, NodeCheckStatus
from crds.schema import structural_schema

names = st.text("abc", min_size=1, max_size=5)
findings = st.builds(
    Finding,
    node=names,
    verdict=st.sampled_from(Verdict),
    causes=st.lists(st.sampled_from(Cause), max_size=8).map(tuple),
    message=st.text(max_size=20),
    action=st.none() | st.sampled_from(Action),
    figures=st.dictionaries(names, st.floats(0, 1e12), max_size=3),
    time=st.datetimes(min_value=datetime(1970, 1, 1), timezones=st.just(UTC)),
    source=st.builds("{}/{}".format, names, names),
    uid=names,
    passed=st.integers(0, 9),
    failed=st.integers(0, 9),
    failed_with=st.lists(names, max_size=3).map(tuple),
)


@given(findings)
def test_finding_is_read_as_it_was_written(finding: Finding) -> None:
    assert Finding.model_validate(finding.to_wire()) == finding
    assert Finding.model_validate_json(finding.model_dump_json(by_alias=True)) == finding


def test_finding_is_written_without_what_it_does_not_say() -> None:
    status = NodeCheckStatus(node_results=[Finding(node="a", verdict="Healthy")])
    assert status.to_wire()["nodeResults"] == [{"node": "a", "verdict": "Healthy"}]


def test_what_a_check_says_elsewhere_is_in_no_schema_of_its_results() -> None:
    schema = structural_schema(NodeCheck)["properties"]["status"]["properties"]["nodeResults"]["items"]
    assert schema["properties"].keys() == {"node", "verdict", "causes", "message", "action", "figures"}
