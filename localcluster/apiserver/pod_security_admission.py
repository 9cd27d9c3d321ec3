"""Pod Security Admission: the labels of a Namespace, and what they make of the Pods in it.

https://kubernetes.io/docs/concepts/security/pod-security-admission/. Versions of the standards, and `audit`,
have no meaning here.
"""

from __future__ import annotations

from localcluster.apiserver.cluster import Cluster
from localcluster.apiserver.errors import forbidden, invalid, invalid_value
from localcluster.apiserver.namespaces import NAMESPACES
from localcluster.apiserver.requests import Context
from localcluster.pod_security import Level, violations
from localcluster.resource import JSON

PREFIX = "pod-security.kubernetes.io/"
_LEVELS = frozenset(level.value for level in Level)


def check(cluster: Cluster, context: Context, obj: JSON, old: JSON | None) -> None:
    """Refuse a new Pod that its Namespace forbids, or a Namespace with wrong labels; warn of others."""
    kind = context.type.group_resource
    if kind == "namespaces" and not context.subresource:
        _check_namespace(context, obj)
    elif kind == "pods" and old is None:
        namespace = cluster.store.get(NAMESPACES, "", context.namespace)
        _check_pod(context, obj, _labels(namespace.obj) if namespace is not None else {})


def _labels(namespace: JSON) -> dict[str, str]:
    labels: dict[str, str] = namespace["metadata"].get("labels") or {}
    return labels


def _check_pod(context: Context, pod: JSON, labels: dict[str, str]) -> None:
    for mode, verb in (("enforce", "violates"), ("warn", "would violate")):
        level = labels.get(f"{PREFIX}{mode}", Level.PRIVILEGED.value)
        if not (found := violations(Level(level), pod["spec"])):
            continue
        why = f'{verb} PodSecurity "{level}:latest": {", ".join(map(str, found))}'
        if mode == "enforce":
            raise forbidden(context.type, pod["metadata"]["name"], why)
        context.warnings.append(why)


def _check_namespace(context: Context, namespace: JSON) -> None:
    faults = [
        invalid_value(
            f"metadata.labels[{PREFIX}{mode}]", level, f"must be one of {', '.join(sorted(_LEVELS))}"
        )
        for mode in ("enforce", "warn")
        if (level := _labels(namespace).get(f"{PREFIX}{mode}")) not in (None, *_LEVELS)
    ]
    if faults:
        raise invalid(context.type, namespace["metadata"]["name"], faults)
