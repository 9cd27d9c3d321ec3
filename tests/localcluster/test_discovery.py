"""What clients are told about what is served: discovery and OpenAPI."""

from __future__ import annotations

import orjson
import pytest

from localcluster.builtin import BUILTIN_TYPES
from localcluster.discovery import api_group, api_groups, api_resources, api_versions
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


def test_groups_and_their_resources_are_named(registry) -> None:
    assert api_versions("127.0.0.1:6443")["versions"] == ["v1"]
    groups = api_groups(registry)["groups"]
    assert [group["name"] for group in groups] == list(registry.groups())
    assert api_group(registry, "g.example.com")["preferredVersion"] == {
        "groupVersion": "g.example.com/v1alpha1",
        "version": "v1alpha1",
    }
    names = [entry["name"] for entry in api_resources(registry, "g.example.com", "v1alpha1")["resources"]]
    assert names == ["things", "things/scale", "things/status"]
    [eviction] = [e for e in api_resources(registry, "", "v1")["resources"] if e["name"] == "pods/eviction"]
    assert (eviction["group"], eviction["version"], eviction["kind"]) == ("policy", "v1", "Eviction")


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
