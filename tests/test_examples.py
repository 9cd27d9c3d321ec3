"""Every job in examples/ is one that the API server takes, and runs a script that is there."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest
import yaml

import crds
from localcluster.builtin import components
from localcluster.schema import CompiledSchema

ROOT = Path(__file__).parents[1]
EXAMPLES = ROOT / "examples"
SCHEMAS = {
    definition["spec"]["names"]["kind"]: CompiledSchema(
        definition["spec"]["versions"][0]["schema"]["openAPIV3Schema"], components(), custom=True
    )
    for definition in crds.manifests()
}
JOBS = [
    pytest.param(document, id=f"{path.parent.name}/{path.name}")
    for path in sorted(EXAMPLES.rglob("*.yaml"))
    for document in yaml.safe_load_all(path.read_text())
    if document.get("kind") in SCHEMAS
]


def faults(document: dict[str, Any]) -> list[str]:
    """Unknown fields, and what schema and rules have against an object."""
    schema = SCHEMAS[document["kind"]]
    _, unknown = schema.prune(document)
    return [f"unknown field {path}" for path in unknown] + list(
        map(str, schema.validate(schema.default(document)))
    )


def containers(document: dict[str, Any]) -> list[dict[str, Any]]:
    replicas = document["spec"]["replicaSpecs"].values()
    return [container for each in replicas for container in each["template"]["spec"]["containers"]]


@pytest.mark.parametrize("document", JOBS)
def test_the_api_server_takes_it(document: dict[str, Any]) -> None:
    assert faults(document) == []


@pytest.mark.parametrize("document", JOBS)
def test_its_scripts_are_there(document: dict[str, Any]) -> None:
    scripts = {word for each in containers(document) for word in each["command"] if word.endswith(".py")}
    assert scripts
    for script in scripts - {"/app/train.py"}:  # in the image of examples/fsdp2/Dockerfile
        assert (ROOT / script).is_file()


@pytest.mark.parametrize("page", sorted((ROOT / "docs").glob("*.md")), ids=lambda page: page.stem)
def test_whole_objects_of_the_documentation_are_taken(page: Path) -> None:
    """Those without an ellipsis."""
    for block in re.findall(r"```yaml\n(.*?)```", page.read_text(), re.DOTALL):
        if "…" in block:
            continue
        for document in yaml.safe_load_all(block):
            if isinstance(document, dict) and document.get("kind") in SCHEMAS:
                assert faults(document) == []
