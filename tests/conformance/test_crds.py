"""The life of a CustomResourceDefinition: established, changed, removed, or refused."""

from __future__ import annotations

import copy
from collections.abc import AsyncIterator
from dataclasses import dataclass, field
from typing import Any

import pytest

from .backend import Backend
from .kubectl import Kubectl
from .objects import crd, manifest, unique, widget_crd, with_spec
from .rawapi import Api, causes, names
from .resources import CRDS, WIDGETS, Resource
from .waiting import eventually

pytestmark = pytest.mark.real

JSON = dict[str, Any]

VERSION = "spec.versions[0]"


@dataclass
class Definitions:
    """Makes CRDs of fresh names, and removes them afterwards."""

    api: Api
    backend: Backend
    made: list[str] = field(default_factory=list)

    def draft(self, schema: JSON, **options: Any) -> tuple[JSON, Resource]:
        kind = unique("Gadget").replace("-", "")
        plural = kind.lower() + "s"
        served = options.get("scope", "Namespaced") == "Namespaced"
        resource = Resource(WIDGETS.group, WIDGETS.version, plural, kind, namespaced=served)
        return crd(plural, kind, schema, **options), resource

    async def create(self, schema: JSON, **options: Any) -> tuple[JSON, Resource]:
        """A CRD whose kind is served."""
        draft, resource = self.draft(schema, **options)
        made = (await self.api.create(CRDS, draft)).expect(201)
        self.made.append(made["metadata"]["name"])
        await eventually(
            lambda: self.api.list(resource),
            within_seconds=self.backend.patience_seconds,
            until=lambda reply: reply.status == 200,
        )
        return (await self.api.get(CRDS, None, made["metadata"]["name"])).expect(200), resource

    async def refused(self, draft: JSON) -> dict[str, str]:
        return causes((await self.api.create(CRDS, draft)).refused(422, "Invalid"))


@pytest.fixture
async def definitions(api: Api, backend: Backend) -> AsyncIterator[Definitions]:
    definitions = Definitions(api, backend)
    yield definitions
    for name in definitions.made:
        await api.delete(CRDS, None, name)


async def test_a_definition_is_established_and_its_names_filled_in(definitions: Definitions) -> None:
    made, resource = await definitions.create(with_spec())
    conditions = {c["type"]: c["status"] for c in made["status"]["conditions"]}
    assert conditions["Established"] == "True"
    assert conditions["NamesAccepted"] == "True"
    assert made["status"]["storedVersions"] == [WIDGETS.version]
    accepted = made["status"]["acceptedNames"]
    assert (accepted["plural"], accepted["kind"]) == (resource.plural, resource.kind)
    assert made["spec"]["names"]["listKind"] == resource.kind + "List"
    assert made["spec"]["names"]["singular"] == resource.kind.lower()
    assert made["spec"]["conversion"] == {"strategy": "None"}


async def test_lists_are_of_the_list_kind(api: Api, definitions: Definitions) -> None:
    _, resource = await definitions.create(with_spec())
    body = (await api.list(resource)).expect(200)
    assert (body["kind"], body["apiVersion"]) == (resource.kind + "List", resource.api_version)
    assert body["items"] == []


async def test_cluster_scoped_kinds_have_no_namespace(
    api: Api, definitions: Definitions, namespace: str
) -> None:
    _, resource = await definitions.create(with_spec(), scope="Cluster")
    body = (await api.create(resource, manifest(resource, None, "g", spec={}))).expect(201)
    assert "namespace" not in body["metadata"]
    path = f"/apis/{resource.group}/{resource.version}/namespaces/{namespace}/{resource.plural}"
    assert (await api.call("GET", path)).status == 404


async def test_without_the_status_subresource_status_is_a_field(
    api: Api, definitions: Definitions, namespace: str
) -> None:
    schema = with_spec()
    schema["properties"]["status"] = {"type": "object", "properties": {"phase": {"type": "string"}}}
    _, resource = await definitions.create(schema)
    obj = manifest(resource, namespace, "g", spec={}, status={"phase": "Given"})
    assert (await api.create(resource, obj)).expect(201)["status"] == {"phase": "Given"}
    assert (await api.get(resource, namespace, "g", sub="status")).status == 404


async def test_a_changed_schema_counts_from_then_on(
    api: Api, backend: Backend, definitions: Definitions, namespace: str
) -> None:
    made, resource = await definitions.create(with_spec(a={"type": "string"}))
    old = manifest(resource, namespace, "old", spec={"a": "1"})
    (await api.create(resource, old)).expect(201)
    changed = copy.deepcopy(made)
    properties = changed["spec"]["versions"][0]["schema"]["openAPIV3Schema"]["properties"]["spec"][
        "properties"
    ]
    properties["b"] = {"type": "string", "default": "new"}
    updated = (await api.put(CRDS, changed)).expect(200)
    assert updated["metadata"]["generation"] == made["metadata"]["generation"] + 1

    async def old_object() -> JSON:
        return (await api.get(resource, namespace, "old")).expect(200)["spec"]

    await eventually(
        old_object,
        within_seconds=backend.patience_seconds,
        until=lambda spec: spec == {"a": "1", "b": "new"},
    )


async def test_deleting_a_definition_deletes_its_objects(
    api: Api, backend: Backend, definitions: Definitions, namespace: str
) -> None:
    made, resource = await definitions.create(with_spec())
    (await api.create(resource, manifest(resource, namespace, "g", spec={}))).expect(201)
    (await api.delete(CRDS, None, made["metadata"]["name"])).expect(200)
    await eventually(
        lambda: api.list(resource),
        within_seconds=backend.patience_seconds,
        until=lambda reply: reply.status == 404,
    )
    await eventually(
        lambda: api.get(CRDS, None, made["metadata"]["name"]),
        within_seconds=backend.patience_seconds,
        until=lambda reply: reply.status == 404,
    )
    fresh = {**made, "metadata": {"name": made["metadata"]["name"]}}
    fresh.pop("status")
    (await api.create(CRDS, fresh)).expect(201)
    await eventually(
        lambda: api.list(resource),
        within_seconds=backend.patience_seconds,
        until=lambda reply: reply.status == 200,
    )
    assert names((await api.list(resource)).body) == []


async def test_an_objects_finalizer_holds_the_definition(
    api: Api, backend: Backend, definitions: Definitions, namespace: str
) -> None:
    made, resource = await definitions.create(with_spec())
    obj = manifest(resource, namespace, "g", spec={}, finalizers=["conformance.dlr.dev/hold"])
    (await api.create(resource, obj)).expect(201)
    (await api.delete(CRDS, None, made["metadata"]["name"])).expect(200)

    async def object_is_terminating() -> Any:
        return (await api.get(resource, namespace, "g")).expect(200)["metadata"].get("deletionTimestamp")

    await eventually(object_is_terminating, within_seconds=backend.patience_seconds)
    held = (await api.get(CRDS, None, made["metadata"]["name"])).expect(200)
    assert held["metadata"]["deletionTimestamp"]
    (await api.patch(resource, namespace, "g", {"metadata": {"finalizers": None}})).expect(200)
    await eventually(
        lambda: api.get(CRDS, None, made["metadata"]["name"]),
        within_seconds=backend.patience_seconds,
        until=lambda reply: reply.status == 404,
    )


async def test_a_definition_is_named_plural_dot_group(definitions: Definitions) -> None:
    draft, _ = definitions.draft(with_spec())
    draft["metadata"]["name"] = "other.conformance.dlr.dev"
    assert "metadata.name" in await definitions.refused(draft)


async def test_a_definition_needs_a_schema(definitions: Definitions) -> None:
    draft, _ = definitions.draft(with_spec())
    del draft["spec"]["versions"][0]["schema"]
    assert f"{VERSION}.schema.openAPIV3Schema" in await definitions.refused(draft)


async def test_a_definition_has_exactly_one_storage_version(definitions: Definitions) -> None:
    draft, _ = definitions.draft(with_spec())
    draft["spec"]["versions"][0]["storage"] = False
    assert "spec.versions" in await definitions.refused(draft)


@pytest.mark.parametrize(
    ("node", "field"),
    [
        ({"description": "no type"}, "type"),
        ({"type": "array"}, "items"),
        (
            {
                "type": "object",
                "properties": {"a": {"type": "string"}},
                "additionalProperties": {"type": "string"},
            },
            "additionalProperties",
        ),
        ({"type": "integer", "default": "three"}, "default"),
        ({"type": "array", "items": {"type": "object"}, "x-kubernetes-list-type": "map"}, "list-map-keys"),
    ],
    ids=["no-type", "array-without-items", "properties-and-additional", "wrong-default", "map-without-keys"],
)
async def test_a_schema_that_is_not_structural_is_refused(
    definitions: Definitions, node: JSON, field: str
) -> None:
    draft, _ = definitions.draft(with_spec(x=node))
    found = await definitions.refused(draft)
    place = "spec.validation.openAPIV3Schema.properties[spec].properties[x]"
    assert any(path.startswith(place) and field in path for path in found), found


@pytest.mark.parametrize("rule", ["self.bogus > 1", "self >"])
async def test_a_cel_rule_that_does_not_compile_is_refused(definitions: Definitions, rule: str) -> None:
    node = {"type": "integer", "x-kubernetes-validations": [{"rule": rule}]}
    draft, _ = definitions.draft(with_spec(x=node))
    place = "spec.validation.openAPIV3Schema.properties[spec].properties[x].x-kubernetes-validations[0].rule"
    assert place in await definitions.refused(draft)


async def test_a_definition_needs_a_known_scope(definitions: Definitions) -> None:
    draft, _ = definitions.draft(with_spec())
    draft["spec"]["scope"] = "Galaxy"
    assert "spec.scope" in await definitions.refused(draft)


async def test_the_suites_own_definition_is_accepted_in_strict_mode(api: Api) -> None:
    reply = await api.create(CRDS, widget_crd(), fieldValidation="Strict", dryRun="All")
    reply.refused(409, "AlreadyExists")


async def test_kubectl_applies_a_definition_and_waits_for_it(
    kubectl: Kubectl, definitions: Definitions, namespace: str
) -> None:
    draft, resource = definitions.draft(with_spec(a={"type": "string"}))
    name = draft["metadata"]["name"]
    definitions.made.append(name)
    await kubectl.run("apply", "-f", "-", stdin=draft)
    await kubectl.run("wait", "--for=condition=Established", f"crd/{name}", "--timeout=300s")
    await kubectl.run("apply", "-f", "-", stdin=manifest(resource, namespace, "g", spec={"a": "1"}))
    listed = await kubectl.run("get", "crd", name)
    assert listed.lines[0].split()[:2] == ["NAME", "CREATED"]
    assert "unchanged" in (await kubectl.run("apply", "-f", "-", stdin=draft)).stdout
    await kubectl.run("delete", "crd", name)
    assert "NotFound" in await kubectl.refused("get", "crd", name)
