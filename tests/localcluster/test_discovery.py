"""What clients are told about what is served: discovery and OpenAPI."""

from __future__ import annotations

import orjson
import pytest

from localcluster.builtin import BUILTIN_TYPES
from localcluster.openapi import OpenApi
from localcluster.resource import Registry, ResourceType
from localcluster.schema_nodes import references

THING = ResourceType(
    group="g.example.com",
    version="v1alpha1",
    kind="Thing",
    plural="things",
    singular="thing",
    short_names=("th",),
    categories=("all",),
    subresources=frozenset({"status", "scale"}),
    schema={
        "type": "object",
        "description": "A thing.",
        "properties": {"spec": {"type": "object", "properties": {"size": {"type": "integer"}}}},
    },
    custom=True,
)


@pytest.fixture
def registry() -> Registry:
    return Registry((*BUILTIN_TYPES, THING))


def documents(registry):
    api = OpenApi(registry)
    for group, version in {(item.group, item.version) for item in registry}:
        yield group, version, orjson.loads(api.document(group, version))


def test_every_document_holds_all_that_it_refers_to(registry) -> None:
    for _, _, document in documents(registry):
        assert references(document) <= document["components"]["schemas"].keys()


def test_patch_operations_promise_field_validation_for_every_kind(registry) -> None:
    for group, version, document in documents(registry):
        promised = {
            operation["x-kubernetes-group-version-kind"]["kind"]
            for path in document["paths"].values()
            if (operation := path.get("patch"))
            and any(parameter["name"] == "fieldValidation" for parameter in operation["parameters"])
        }
        stored = {t.kind for t in registry if (t.group, t.version) == (group, version) and t.stored}
        assert promised == stored
