"""Subset of kustomize that `deploy/` uses.

It covers resources, their namespace, ConfigMaps from files, components, and JSON patches with a target:

https://kubectl.docs.kubernetes.io/references/kustomize/kustomization/. A test compares its output with
kustomize's own.
"""

from __future__ import annotations

from collections.abc import Sequence
from copy import deepcopy
from functools import cache
from pathlib import Path
from typing import Any

Document = dict[str, Any]


def render(folder: Path, components: Sequence[Path] = ()) -> list[Document]:
    """Return the documents of a folder with a kustomization.yaml, changed by each component in turn.

    A component's own documents come last. Raises LookupError if a patch has no target.
    """
    (kustomization,) = _load((folder / "kustomization.yaml").read_text())
    found = resources(folder, kustomization)
    for component in components:
        (kustomization,) = _load((component / "kustomization.yaml").read_text())
        found += resources(component, kustomization)
        for patch in kustomization.get("patches") or ():
            (operations,) = _load(patch["patch"])
            _patch(found, patch["target"], operations)
    return found


def _load(text: str) -> list[Any]:
    return deepcopy(_parsed(text))


@cache
def _parsed(text: str) -> list[Any]:
    """Parse a text once: `dlr install` renders all variants before it asks, and then the chosen one."""
    # Imported here, since every command imports this module at start.
    import yaml

    # The C loader is ten times as fast, but not every build of PyYAML has it.
    loader = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
    return [document for document in yaml.load_all(text, loader) if document]


def resources(folder: Path, kustomization: Document) -> list[Document]:
    """Return the documents that a kustomization lists, without those of components."""
    found: list[Document] = []
    for name in kustomization.get("resources") or ():
        path = (folder / name).resolve()
        if path.is_dir():
            found += render(path)
        else:
            found += _load(path.read_text())
    found += [_config_map(folder, wanted) for wanted in kustomization.get("configMapGenerator") or ()]
    if namespace := kustomization.get("namespace"):
        for document in found:
            if not document["kind"].startswith("Cluster"):
                document["metadata"]["namespace"] = namespace
    return found


def _config_map(folder: Path, wanted: Document) -> Document:
    return {
        "apiVersion": "v1",
        "kind": "ConfigMap",
        "metadata": {"name": wanted["name"], "labels": wanted["options"]["labels"]},
        "data": {name: (folder / name).read_text() for name in wanted["files"]},
    }


def _patch(found: list[Document], target: Document, operations: list[Document]) -> None:
    import jsonpatch

    at = [position for position, document in enumerate(found) if _is_target(document, target)]
    if not at:
        raise LookupError(f"a patch has no target: {target}")
    for position in at:
        found[position] = jsonpatch.apply_patch(found[position], operations)


def _is_target(document: Document, target: Document) -> bool:
    metadata = document["metadata"]
    return (
        document["kind"] == target["kind"]
        and metadata["name"] == target["name"]
        and target.get("namespace") in (None, metadata.get("namespace"))
    )
