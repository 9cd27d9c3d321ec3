"""What a cluster needs to have dlr: a kustomize base, and its documents for `dlr manifests`.

The YAML is package data, so that an installed wheel can print it where there is neither a checkout nor
kustomize.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

DEFAULT_NAMESPACE = "dlr-system"
DEFAULT_IMAGE = "dlr-controller:0.1.0"
DEFAULT_CHECK_IMAGE = "dlr-worker:0.1.0"

Document = dict[str, Any]

_FOLDER = Path(__file__).parent


def documents(
    namespace: str = DEFAULT_NAMESPACE, image: str = DEFAULT_IMAGE, check_image: str = DEFAULT_CHECK_IMAGE
) -> list[Document]:
    """The objects of `kubectl kustomize deploy/`, in the order in which they can be applied."""
    replaced = {DEFAULT_NAMESPACE: namespace, DEFAULT_IMAGE: image, DEFAULT_CHECK_IMAGE: check_image}
    return _documents(_FOLDER, replaced)


def worker_documents() -> list[Document]:
    """Those that workers need, whoever runs the controller: their rights."""
    return _documents(_FOLDER / "worker", {})


def _documents(folder: Path, replaced: Mapping[str, str]) -> list[Document]:
    import yaml

    found: list[Document] = []
    for name in yaml.safe_load((folder / "kustomization.yaml").read_text())["resources"]:
        path = (folder / name).resolve()
        if path.is_dir():
            found += _documents(path, replaced)
        else:
            text = path.read_text()
            for default, wanted in replaced.items():
                text = text.replace(default, wanted)
            found += [document for document in yaml.safe_load_all(text) if document]
    return found
