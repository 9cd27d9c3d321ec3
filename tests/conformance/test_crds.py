"""The life of a CustomResourceDefinition: established, changed, removed, or refused."""

from __future__ import annotations

import copy
from collections.abc import AsyncIterator
from dataclasses import dataclass, field
from typing import Any

import pytest

from .backend import Backend
from .objects import crd, manifest, unique, with_spec
from .rawapi import Api, causes, names
from .resources import CRDS, WIDGETS, Resource
from .waiting import eventually

pytestmark = pytest.mark.real

JSON = dict[str, Any]


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
