"""Every level of our own CRDs, held to what Kubernetes asks of them."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

import crds
import deploy
from localcluster.apiserver.crds import faults
from localcluster.apiserver.policies import binding_faults, policy_faults
from localcluster.builtin import components
from localcluster.field_errors import Finding
from localcluster.pruning import DefaultingCompiler, PruningCompiler, UnknownField
from localcluster.rules import RULES, RulesCompiler
from localcluster.schema_nodes import Node, build
from localcluster.validation import ValidationCompiler
from tests.reconcilers.api import _out_of_order

JSON = dict[str, Any]
DEFINITIONS = {definition["spec"]["names"]["kind"]: definition for definition in crds.manifests()}
WORKER = DEFINITIONS["ElasticWorker"]["spec"]["versions"][0]["schema"]["openAPIV3Schema"]
WORKER_RULES: Any = RulesCompiler().check(build(WORKER, components(), is_resource=True))


@pytest.fixture(params=DEFINITIONS.values(), ids=DEFINITIONS)
def definition(request: pytest.FixtureRequest) -> JSON:
    return request.param


WANTS_SOMETHING = {"required", "minProperties", RULES}
"""What an object that is empty may be refused for."""


def levels(node: Node, path: str = "") -> Iterator[tuple[str, Node, Any]]:
    """Path, level and default (None without one) of everything below a level."""
    below = [(f"{path}.{name}", child, node.defaults.get(name)) for name, child in node.properties.items()]
    if node.items is not None:
        below.append((f"{path}[]", node.items, None))
    if node.additional is not None:
        below.append((f"{path}[*]", node.additional, None))
    for where, child, default in below:
        if not (node.is_resource and where in (".metadata", ".kind", ".apiVersion")):
            yield where, child, default
            yield from levels(child, where)


def problems(node: Node, value: Any) -> list[str]:
    """What pruning, the schema and the rules of a level have against a value."""
    unknown: list[UnknownField] = []
    PruningCompiler().pruner(node)(value, None, unknown)
    found: list[Finding] = []
    for check in (ValidationCompiler(list_types=True).check(node), RulesCompiler().check(node)):
        if check is not None and not found:
            run = check if callable(check) else check.run
            run(value, None, found)
            run(value, value, found)
    return [f"unknown {field}" for field in unknown] + [str(finding.error()) for finding in found]


def completed(node: Node, value: Any) -> Any:
    defaulter = DefaultingCompiler().defaulter(node)
    return value if defaulter is None else defaulter(value, None)


def test_a_definition_is_taken(definition: JSON) -> None:
    assert faults(definition) == []


def test_every_rule_has_a_message_of_one_line(definition: JSON) -> None:
    """Kubernetes wants one for a rule of several lines."""
    schema = definition["spec"]["versions"][0]["schema"]["openAPIV3Schema"]
    for path, node, _ in levels(build(schema, components(), is_resource=True)):
        for rule in node.schema.get(RULES) or ():
            message = rule.get("message", "")
            assert message.strip() and "\n" not in message, path


def test_defaults_hold_at_every_level(definition: JSON) -> None:
    """As they are written, and with what the defaults inside them add, which nothing changes any more."""
    schema = definition["spec"]["versions"][0]["schema"]["openAPIV3Schema"]
    walked = 0
    for path, node, default in levels(build(schema, components(), is_resource=True)):
        values = [] if default is None else [default]
        if node.schema.get("type") == "object" and not WANTS_SOMETHING & node.schema.keys():
            values.append({})
        for value in values:
            whole = completed(node, value)
            assert problems(node, value) == [], path
            assert problems(node, whole) == [], path
            assert completed(node, whole) == whole, path
        walked += 1
    assert walked > 5


REPORTS = st.tuples(st.integers(1, 3), st.none() | st.integers(0, 3), st.sampled_from("ab"))
Reported = tuple[int, int | None, str]


@given(REPORTS, REPORTS, st.integers(0, 2), st.none() | st.sampled_from("ab"))
@example((1, 1, "b"), (1, 18, "a"), 0, "b")  # by the Pod of a job that was made again, long on its way
@example((1, 1, "b"), (1, 18, "a"), 0, None)
@example((1, 18, "a"), (1, 1, "b"), 0, "b")
def test_a_report_replaces_no_later_one_and_is_of_no_later_incarnation(
    old: Reported, new: Reported, relaunches: int, pod: str | None
) -> None:
    incarnation = old[0] + relaunches

    def worker(report: Reported) -> JSON:
        agent = {"incarnation": report[0], "podUid": report[2]}
        agent |= {} if report[1] is None else {"sequence": report[1]}
        recorded = {} if pod is None else {"podUid": pod}
        spec = {"jobName": "digits", "type": "worker", "index": 1, "incarnation": incarnation}
        return {"spec": spec, "status": {"agent": agent, **recorded}}

    found: list[Finding] = []
    WORKER_RULES.run(worker(new), worker(old), found)
    said = " ".join(str(finding.error()) for finding in found)
    wanted = _out_of_order(worker(old), worker(new))
    assert wanted in said and bool(wanted) is bool(said)
    if old[0] == new[0] and old[2] != new[2]:
        assert bool(said) is (new[2] != pod)


def test_policies_are_taken_by_kubernetes() -> None:
    checks = {"ValidatingAdmissionPolicy": policy_faults, "ValidatingAdmissionPolicyBinding": binding_faults}
    found = [(obj, checks[obj["kind"]]) for obj in deploy.documents() if obj["kind"] in checks]
    assert found
    for obj, check in found:
        assert check(obj) == [], obj["metadata"]["name"]
