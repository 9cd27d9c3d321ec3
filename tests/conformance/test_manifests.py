"""What the project installs, as the API server under test takes it: every document, strictly, as a dry run."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from .rawapi import Api

pytestmark = pytest.mark.real

JSON = dict[str, Any]

PROJECT = Path(__file__).parents[2]
FOLDERS = ("crds/yaml", "deploy")
OTHERS = ("monitoring.coreos.com/", "kustomize.config.k8s.io/")
"""The Prometheus operator's kinds, which only its own installation serves, and kustomize's own."""


def documents() -> Iterator[JSON]:
    for folder in FOLDERS:
        for path in sorted((PROJECT / folder).rglob("*.yaml")):
            for document in filter(None, yaml.load_all(path.read_text(), yaml.CSafeLoader)):
                if not document["apiVersion"].startswith(OTHERS):
                    yield document


async def collection(api: Api, document: JSON, namespace: str) -> str | None:
    """Where objects of the document's kind are created, by what discovery says; None where it is not served."""
    version = document["apiVersion"]
    base = f"/apis/{version}" if "/" in version else f"/api/{version}"
    reply = await api.call("GET", base)
    if reply.status == 404:
        return None
    served = reply.expect(200)["resources"]
    found = next(r for r in served if r["kind"] == document["kind"] and "/" not in r["name"])
    return (
        f"{base}/namespaces/{namespace}/{found['name']}" if found["namespaced"] else f"{base}/{found['name']}"
    )


async def test_the_projects_manifests_are_accepted(api: Api, namespace: str) -> None:
    query = {"dryRun": "All", "fieldValidation": "Strict"}
    for document in documents():
        if (path := await collection(api, document, namespace)) is None:
            continue
        metadata = {key: value for key, value in document["metadata"].items() if key != "namespace"}
        reply = await api.call("POST", path, body={**document, "metadata": metadata}, query=query)
        assert reply.status == 201 or reply.body["reason"] == "AlreadyExists", (document["kind"], reply.text)
        assert reply.warnings == ()
