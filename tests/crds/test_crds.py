from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import yaml
from pydantic import ValidationError

import crds
from crds.elasticjob import ElasticJob
from crds.generate import DEFINITIONS, KindDefinition, file_of, render
from crds.nodecheck import NodeCheckSpec
from crds.schema import structural_schema

DLROVER_JOB = Path(__file__).parents[2] / "e2e" / "fixtures" / "dlrover-elasticjob.yaml"


@pytest.mark.parametrize("definition", DEFINITIONS, ids=lambda d: d.kind)
def test_yaml_is_what_the_models_say(definition: KindDefinition) -> None:
    """Run `python -m crds.generate` after a change of the models."""
    assert file_of(definition).read_text() == render(definition)


def nodes(schema: dict[str, Any], path: str = "") -> Any:
    yield path, schema
    for name, inner in schema.get("properties", {}).items():
        yield from nodes(inner, f"{path}.{name}")
    for keyword in ("items", "additionalProperties"):
        if isinstance(schema.get(keyword), dict):
            yield from nodes(schema[keyword], f"{path}[]")


@pytest.mark.parametrize("definition", DEFINITIONS, ids=lambda d: d.kind)
def test_schema_is_structural(definition: KindDefinition) -> None:
    schema = definition.manifest()["spec"]["versions"][0]["schema"]["openAPIV3Schema"]
    for path, node in nodes(schema):
        assert "type" in node or node.get("x-kubernetes-int-or-string"), path
        assert not {"$ref", "anyOf", "allOf", "oneOf", "title"} & set(node), path
        assert not ("properties" in node and "additionalProperties" in node), path
        assert not (path.startswith(".status") and "default" in node), path


@pytest.mark.parametrize("definition", DEFINITIONS, ids=lambda d: d.kind)
def test_what_rules_look_at_is_bounded(definition: KindDefinition) -> None:
    """A real API server estimates the cost of CEL rules by these bounds, and refuses unbounded ones."""
    schema = definition.manifest()["spec"]["versions"][0]["schema"]["openAPIV3Schema"]
    for path, node in nodes(schema):
        if node.get("x-kubernetes-preserve-unknown-fields") or path in ("", ".metadata"):
            continue
        if node.get("type") == "array":
            assert "maxItems" in node, path
        if "additionalProperties" in node:
            assert "maxProperties" in node, path


@pytest.mark.parametrize("kind", ["ElasticJob", "NodeCheck", "ScalePlan"])
def test_kubectl_explain_says_what_each_field_is_that_a_person_writes(kind: str) -> None:
    (definition,) = (each for each in DEFINITIONS if each.kind == kind)
    fields = {path: node for path, node in nodes(structural_schema(definition.model)) if is_own_field(path)}
    assert fields and not [path for path, node in fields.items() if not node.get("description")]


def is_own_field(path: str) -> bool:
    """A Pod template is Kubernetes' own."""
    return path.startswith(".spec.") and not path.endswith("[]") and ".template." not in path


def test_manifests_are_the_files() -> None:
    assert {m["spec"]["names"]["kind"] for m in crds.manifests()} == {d.kind for d in DEFINITIONS}


def test_a_line_of_kubectl_get_has_room_on_80_columns() -> None:
    """As the embedded cluster names its nodes; kubectl puts three blanks between columns."""
    told = {"Rank": "12", "Node": "node-0", "Phase": "Running", "State": "Running", "Step": "123401"}
    (definition,) = (each for each in DEFINITIONS if each.kind == "ElasticWorker")
    shown = [column.name for column in definition.columns if not column.priority]
    assert set(told) < set(shown)
    widths = [max(len(name), len(told.get(name, ""))) for name in shown]
    assert len("digits-worker-12") + sum(3 + width for width in widths) <= 80


def test_dlrovers_job_is_a_job_of_ours() -> None:
    job = ElasticJob.model_validate(yaml.safe_load(DLROVER_JOB.read_text()))
    assert job.spec.replica_specs["worker"].replicas == 2
    assert job.spec.elastic_policy.heartbeat_timeout_seconds == 30


@pytest.mark.parametrize("type_", ["dlrover-master", "master"])
@pytest.mark.parametrize("master", [{}, {"template": None}, {"template": {"spec": 1}, "replicas": "x"}, None])
def test_whatever_a_master_says_no_reconciler_reads_it(type_: str, master: Any) -> None:
    manifest = yaml.safe_load(DLROVER_JOB.read_text())
    manifest["spec"]["replicaSpecs"][type_] = master
    found = ElasticJob.model_validate(manifest).spec.replica_specs[type_]
    assert found.replicas == 0
    assert found.template["spec"]["containers"] == [{"name": "ignored", "image": "none"}]


def test_what_is_optional_stays_away_although_it_has_defaults_inside() -> None:
    """The API server would have made each job one that scales with its shards."""
    schema = structural_schema(ElasticJob)["properties"]["spec"]["properties"]["elasticPolicy"]
    assert schema["default"] == {}
    assert "default" not in schema["properties"]["shardScaling"]
    assert schema["properties"]["shardScaling"]["properties"]["slotsPerWorker"]["default"] == 1


@pytest.mark.parametrize("label", ["a b", "%", "", "Rack/", "a/b/c", "x" * 64])
def test_a_topology_that_is_no_label_is_refused(label: str) -> None:
    with pytest.raises(ValidationError, match="topologyKeys"):
        NodeCheckSpec.model_validate({"topologyKeys": ["topology.kubernetes.io/rack", label]})
    assert NodeCheckSpec.model_validate({"topologyKeys": ["topology.kubernetes.io/rack", "auto"]})
