"""Pod Security Admission: the labels of a Namespace, and what they make of writes in it.

https://kubernetes.io/docs/concepts/security/pod-security-admission/. `audit` labels are checked, too, but
this server has no audit log for their findings.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field

from localcluster.apiserver.cluster import Cluster
from localcluster.apiserver.errors import forbidden, invalid, invalid_value
from localcluster.apiserver.namespaces import NAMESPACES
from localcluster.apiserver.requests import Context
from localcluster.pod_security import PRIVILEGED, Level, Standard, violations
from localcluster.resource import JSON

PREFIX = "pod-security.kubernetes.io/"
_VERSION = re.compile(r"v1\.(0|[1-9][0-9]*)")


@dataclass(frozen=True)
class Policy:
    """What a Namespace asks for."""

    enforce: Standard = PRIVILEGED
    warn: Standard = PRIVILEGED
    faults: list[JSON] = field(default_factory=list)
    """Labels that cannot be read."""


def policy_of(labels: Mapping[str, str]) -> Policy:
    """Read a Namespace's labels. Of those that cannot be read `enforce` means restricted, others nothing."""
    faults: list[JSON] = []
    enforce = _standard(labels, "enforce", Level.RESTRICTED, faults)
    _standard(labels, "audit", Level.PRIVILEGED, faults)
    warn = _standard(labels, "warn", Level.PRIVILEGED, faults)
    readable = labels.get(f"{PREFIX}enforce") in {level.value for level in Level}
    if f"{PREFIX}warn" not in labels and readable:
        minor = warn.minor if f"{PREFIX}warn-version" in labels else enforce.minor
        warn = Standard(enforce.level, minor)
    return Policy(enforce, warn, faults)


def _standard(labels: Mapping[str, str], mode: str, otherwise: Level, faults: list[JSON]) -> Standard:
    level, minor = Level.PRIVILEGED, None
    key, version_key = f"{PREFIX}{mode}", f"{PREFIX}{mode}-version"
    if (text := labels.get(key)) is not None:
        try:
            level = Level(text)
        except ValueError:
            level = otherwise
            faults.append(_fault(key, text, f"must be one of {', '.join(each.value for each in Level)}"))
    if (text := labels.get(version_key, "latest")) != "latest":
        if match := _VERSION.fullmatch(text):
            minor = int(match[1])
        else:
            faults.append(_fault(version_key, text, 'must be "latest" or "v1.x"'))
    return Standard(level, minor)


def _fault(key: str, text: str, why: str) -> JSON:
    return invalid_value(f"metadata.labels[{key}]", text, why)


def check(cluster: Cluster, context: Context, obj: JSON, old: JSON | None) -> None:
    """Refuse a Pod that its Namespace forbids, or a Namespace with wrong labels."""
    kind = context.type.group_resource
    if context.subresource:
        return
    if kind == "namespaces":
        _check_namespace(context, obj, old)
    elif kind == "pods":
        _check_pod(cluster, context, obj, old)


def _labels(namespace: JSON) -> Mapping[str, str]:
    labels: Mapping[str, str] = namespace["metadata"].get("labels") or {}
    return labels


def _policy_in(cluster: Cluster, context: Context) -> Policy:
    namespace = cluster.store.get(NAMESPACES, "", context.namespace)
    return policy_of(_labels(namespace.obj)) if namespace is not None else Policy()


def _check_pod(cluster: Cluster, context: Context, pod: JSON, old: JSON | None) -> None:
    if old is not None and _images(pod) == _images(old):
        return
    policy = _policy_in(cluster, context)
    if found := violations(policy.enforce, pod["metadata"], pod["spec"]):
        listed = ", ".join(map(str, found))
        name = pod["metadata"]["name"]
        raise forbidden(context.type, name, f'violates PodSecurity "{policy.enforce}": {listed}')
    if found := violations(policy.warn, pod["metadata"], pod["spec"]):
        listed = ", ".join(map(str, found))
        context.warnings.append(f'would violate PodSecurity "{policy.warn}": {listed}')


def _images(pod: JSON) -> list[list[str]]:
    """All of a Pod that a write can change and that its Namespace may forbid."""
    parts = ("initContainers", "containers")
    return [[container.get("image", "") for container in pod["spec"].get(part) or ()] for part in parts]


def _check_namespace(context: Context, new: JSON, old: JSON | None) -> None:
    policy = policy_of(_labels(new))
    before = policy_of(_labels(old)) if old is not None else Policy()
    if policy.faults and policy.faults != before.faults:
        raise invalid(context.type, new["metadata"]["name"], policy.faults)
