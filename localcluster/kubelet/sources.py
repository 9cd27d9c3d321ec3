"""The ConfigMaps and Secrets that a Pod refers to: which (pure), and a fetch of them all at once."""

from __future__ import annotations

import asyncio
import base64
from collections.abc import Iterator
from dataclasses import dataclass
from enum import Enum

from controller.errors import NotFound
from controller.resources import CONFIGMAPS, SECRETS, Resource
from localcluster.client.api import ApiClient
from localcluster.resource import JSON


class SourceKind(Enum):
    CONFIG_MAP = "configmap"
    SECRET = "secret"

    @property
    def collection(self) -> Resource:
        return CONFIGMAPS if self is SourceKind.CONFIG_MAP else SECRETS


@dataclass(frozen=True)
class Source:
    kind: SourceKind
    name: str


Sources = dict[Source, dict[str, bytes]]
"""Those that exist, and their content by key."""


def references(pod: JSON) -> set[Source]:
    """Everything that the Pod's environment and volumes name."""
    spec = pod["spec"]
    found: set[Source] = set()
    for container in (spec.get("initContainers") or []) + spec["containers"]:
        for entry in container.get("env") or ():
            value_from = entry.get("valueFrom") or {}
            found.update(_named(value_from, "configMapKeyRef", "secretKeyRef"))
        for entry in container.get("envFrom") or ():
            found.update(_named(entry, "configMapRef", "secretRef"))
    for volume in spec.get("volumes") or ():
        if "secret" in volume:
            found.add(Source(SourceKind.SECRET, volume["secret"]["secretName"]))
        if "configMap" in volume:
            found.add(Source(SourceKind.CONFIG_MAP, volume["configMap"]["name"]))
        for projection in (volume.get("projected") or {}).get("sources") or ():
            found.update(_named(projection, "configMap", "secret"))
    return found


def _named(entry: JSON, config_map_field: str, secret_field: str) -> Iterator[Source]:
    if config_map_field in entry:
        yield Source(SourceKind.CONFIG_MAP, entry[config_map_field]["name"])
    if secret_field in entry:
        yield Source(SourceKind.SECRET, entry[secret_field]["name"])


async def fetch(client: ApiClient, namespace: str, wanted: set[Source]) -> Sources:
    """Fetch the wanted objects that exist; whether one may be missing is for their user to decide."""
    found = await asyncio.gather(*(_fetch(client, namespace, source) for source in wanted))
    return {source: content for source, content in zip(wanted, found, strict=True) if content is not None}


async def _fetch(client: ApiClient, namespace: str, source: Source) -> dict[str, bytes] | None:
    try:
        obj = await client.get(source.kind.collection.path(namespace, source.name))
    except NotFound:
        return None
    if source.kind is SourceKind.SECRET:
        return {key: base64.b64decode(value) for key, value in (obj.get("data") or {}).items()}
    content = {key: value.encode() for key, value in (obj.get("data") or {}).items()}
    return content | {key: base64.b64decode(value) for key, value in (obj.get("binaryData") or {}).items()}
