"""Manifests of dlr for a cluster: a kustomize base with components, and its documents for `dlr install`.

The YAML is package data, so that an installed wheel can print and apply it without a checkout or
kustomize. Each option of `documents` is a kustomize component in a folder here.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path

from crds import names
from crds.release import VERSION
from deploy.kustomize import Document, render

__all__ = [
    "DEFAULT_AGENT_IMAGE",
    "DEFAULT_CHECK_IMAGE",
    "DEFAULT_IMAGE",
    "DEFAULT_JOBS_NAMESPACE",
    "DEFAULT_NAMESPACE",
    "Document",
    "check_image_name",
    "check_namespace",
    "documents",
]

DEFAULT_NAMESPACE = names.SYSTEM_NAMESPACE
DEFAULT_JOBS_NAMESPACE = "dlr-jobs"
"""Namespace named in `deploy/namespaced`; without that component the controller handles all namespaces."""
DEFAULT_IMAGE = f"dlr-controller:{VERSION}"
DEFAULT_CHECK_IMAGE = f"dlr-worker:{VERSION}"
DEFAULT_AGENT_IMAGE = f"dlr-agent:{VERSION}"

_FOLDER = Path(__file__).parent
_ORDER = (
    "CustomResourceDefinition",
    "Namespace",
    "PriorityClass",
    "ServiceAccount",
    "ClusterRole",
    "ClusterRoleBinding",
    "Role",
    "RoleBinding",
    "FlowSchema",
    "ValidatingAdmissionPolicy",
    "ValidatingAdmissionPolicyBinding",
    "NetworkPolicy",
    "PodDisruptionBudget",
    "Deployment",
)
"""Order of application: dependencies first, and admission policies for workers before there can be any."""

_NAMESPACE = re.compile(r"[a-z0-9]([-a-z0-9]*[a-z0-9])?")
_NAMESPACE_LENGTH_MAX = 63
# https://github.com/distribution/reference/blob/main/reference.go
_IMAGE = re.compile(
    r"((?P<host>[A-Za-z0-9][A-Za-z0-9.-]*|\[[0-9A-Fa-f:]+\])(:[0-9]+)?/)?"
    r"[a-z0-9]+([._-]+[a-z0-9]+)*(/[a-z0-9]+([._-]+[a-z0-9]+)*)*"
    r"(:\w[\w.-]{0,127})?"
    r"(@[A-Za-z][A-Za-z0-9+._-]*:[0-9a-fA-F]{32,})?"
)


def documents(
    namespace: str = DEFAULT_NAMESPACE,
    image: str = DEFAULT_IMAGE,
    check_image: str = DEFAULT_CHECK_IMAGE,
    agent_image: str = DEFAULT_AGENT_IMAGE,
    *,
    jobs_namespace: str | None = None,
    network_policy: bool = False,
    priority_class: bool = False,
    kueue: bool = False,
) -> list[Document]:
    """Return the objects of `kubectl kustomize deploy/`, in the order in which they can be applied.

    jobs_namespace: the only namespace that the controller handles, with rights there (deploy/namespaced)
    network_policy: with deploy/network
    priority_class: with deploy/priority
    kueue: with deploy/kueue, and deploy/kueue-namespaced if there is a jobs_namespace

    Raises ValueError, with a sentence, for a name of a namespace or image that Kubernetes would refuse.
    """
    check_namespace(namespace)
    replaced = {DEFAULT_NAMESPACE: namespace}
    images = {DEFAULT_IMAGE: image, DEFAULT_CHECK_IMAGE: check_image, DEFAULT_AGENT_IMAGE: agent_image}
    for default, wanted in images.items():
        check_image_name(wanted)
        replaced[default] = wanted
    if jobs_namespace is not None:
        check_namespace(jobs_namespace)
        replaced[DEFAULT_JOBS_NAMESPACE] = jobs_namespace
    chosen = {
        "namespaced": jobs_namespace is not None,
        "network": network_policy,
        "priority": priority_class,
        "kueue": kueue,
        "kueue-namespaced": kueue and jobs_namespace is not None,
    }
    found = render(_FOLDER, [_FOLDER / name for name, wanted in chosen.items() if wanted])
    found.sort(key=lambda document: _ORDER.index(document["kind"]))
    return [_with_names(document, replaced) for document in found]


def check_namespace(name: str) -> None:
    """Raise ValueError, with a sentence, if no namespace can have this name (RFC 1123)."""
    if len(name) > _NAMESPACE_LENGTH_MAX or not _NAMESPACE.fullmatch(name):
        raise ValueError(
            f"{name!r} is no name for a namespace: it needs 1 to {_NAMESPACE_LENGTH_MAX} of a-z, 0-9 and -, "
            "with a letter or digit at both ends."
        )


def check_image_name(name: str) -> None:
    """Raise ValueError, with a sentence, if no image can have this name."""
    if not _IMAGE.fullmatch(name):
        raise ValueError(
            f"{name!r} is no image: it needs a form like registry.example/team/{DEFAULT_IMAGE}, "
            "in lower case and without spaces."
        )


def _with_names(document: Document, replaced: Mapping[str, str]) -> Document:
    """Return the document with names replaced in all of its texts, in one pass: a new name may be another's
    old one."""
    pattern = re.compile("|".join(map(re.escape, replaced)))

    def renamed(value: object) -> object:
        if isinstance(value, dict):
            return {key: renamed(inner) for key, inner in value.items()}
        if isinstance(value, list):
            return [renamed(inner) for inner in value]
        if isinstance(value, str):
            return pattern.sub(lambda found: replaced[found.group()], value)
        return value

    result = renamed(document)
    assert isinstance(result, dict)
    return result
