"""Brings given objects into the cluster: creates what is missing, replaces what is there."""

from __future__ import annotations

import asyncio
import time

from controller.errors import AlreadyExists, Conflict, NotFound, Refused
from controller.resources import Resource
from localcluster.client.api import ApiClient
from localcluster.resource import JSON

CONFLICT_ATTEMPTS = 5
ESTABLISHED_SECONDS = 15.0
ESTABLISHED_CHECK_SECONDS = 0.02


class ManifestRefused(Exception):
    """The API server does not take an object."""


async def apply(client: ApiClient, manifests: list[JSON]) -> None:
    """Apply in the order given; wait for a CustomResourceDefinition, so that its objects may follow."""
    for manifest in manifests:
        named = f"{manifest['kind']} {manifest['metadata']['name']}"
        try:
            path = await _path(client, manifest)
            await _create_or_replace(client, path, manifest)
            if manifest["kind"] == "CustomResourceDefinition":
                await _until_established(client, f"{path}/{manifest['metadata']['name']}")
        except Refused as failure:
            raise ManifestRefused(f"{named} is refused by the API server: {failure}") from failure


async def _path(client: ApiClient, manifest: JSON) -> str:
    """The collection's path, from discovery."""
    version: str = manifest["apiVersion"]
    prefix = f"/apis/{version}" if "/" in version else f"/api/{version}"
    group, _, version = version.rpartition("/")
    for resource in (await client.get(prefix))["resources"]:
        if resource["kind"] == manifest["kind"] and "/" not in resource["name"]:
            namespace = manifest["metadata"].get("namespace") or "default"
            kind, namespaced = resource["kind"], resource["namespaced"]
            return Resource(group, version, resource["name"], kind, namespaced).path(namespace)
    raise ManifestRefused(f"the cluster knows no {manifest['kind']} in {manifest['apiVersion']}")


async def _create_or_replace(client: ApiClient, path: str, manifest: JSON) -> None:
    for attempt in range(CONFLICT_ATTEMPTS):
        try:
            try:
                present = await client.get(f"{path}/{manifest['metadata']['name']}")
            except NotFound:
                await client.create(path, manifest)
            else:
                metadata = {**manifest["metadata"], "resourceVersion": present["metadata"]["resourceVersion"]}
                await client.replace(f"{path}/{metadata['name']}", {**manifest, "metadata": metadata})
            return
        except (AlreadyExists, Conflict):  # somebody else has written in between
            if attempt == CONFLICT_ATTEMPTS - 1:
                raise


async def _until_established(client: ApiClient, path: str) -> None:
    deadline = time.monotonic() + ESTABLISHED_SECONDS
    while True:
        conditions = ((await client.get(path)).get("status") or {}).get("conditions") or ()
        if any(c["type"] == "Established" and c["status"] == "True" for c in conditions):
            return
        if time.monotonic() > deadline:
            raise ManifestRefused(f"{path} is not established: {conditions}")
        await asyncio.sleep(ESTABLISHED_CHECK_SECONDS)
