"""The discovery documents, by which the API server lists the resources that it serves.

kubectl asks for aggregated discovery first, and uses these where there is none.
"""

from __future__ import annotations

from dataclasses import dataclass

from localcluster.resource import JSON, Registry, ResourceType


@dataclass(frozen=True)
class _Subresource:
    """A subresource: what it answers with (None: its parent's kind) and what one may do with it."""

    verbs: tuple[str, ...]
    kind: tuple[str, str, str] | None = None


_SUBRESOURCES = {
    "binding": _Subresource(("create",), ("", "v1", "Binding")),
    "eviction": _Subresource(("create",), ("policy", "v1", "Eviction")),
    "finalize": _Subresource(("update",)),
    "log": _Subresource(("get",)),
    "scale": _Subresource(("get", "patch", "update"), ("autoscaling", "v1", "Scale")),
    "status": _Subresource(("get", "patch", "update")),
    "token": _Subresource(("create",), ("authentication.k8s.io", "v1", "TokenRequest")),
}


def _subresources(resource_type: ResourceType) -> list[tuple[str, _Subresource]]:
    return [(name, _SUBRESOURCES[name]) for name in sorted(resource_type.subresources)]


def _types(registry: Registry, group: str, version: str) -> list[ResourceType]:
    found = [item for item in registry if item.group == group and item.version == version]
    return sorted(found, key=lambda resource_type: resource_type.plural)


def api_versions(server_address: str) -> JSON:
    """The answer of `/api`."""
    return {
        "kind": "APIVersions",
        "versions": ["v1"],
        "serverAddressByClientCIDRs": [{"clientCIDR": "0.0.0.0/0", "serverAddress": server_address}],
    }


def api_groups(registry: Registry) -> JSON:
    """The answer of `/apis`."""
    return {
        "kind": "APIGroupList",
        "apiVersion": "v1",
        "groups": [_group(registry, group) for group in registry.groups()],
    }


def api_group(registry: Registry, group: str) -> JSON | None:
    """The answer of `/apis/<group>`, or None for a group that is not served."""
    if group not in registry.groups():
        return None
    return {"kind": "APIGroup", "apiVersion": "v1", **_group(registry, group)}


def _group(registry: Registry, group: str) -> JSON:
    versions = [
        {"groupVersion": f"{group}/{version}", "version": version} for version in registry.versions(group)
    ]
    return {"name": group, "versions": versions, "preferredVersion": versions[0]}


def api_resources(registry: Registry, group: str, version: str) -> JSON | None:
    """The answer of `/api/v1` and `/apis/<group>/<version>`, or None for what is not served."""
    served = _types(registry, group, version)
    if not served:
        return None
    return {
        "kind": "APIResourceList",
        "apiVersion": "v1",
        "groupVersion": served[0].api_version,
        "resources": [entry for resource_type in served for entry in _resource_entries(resource_type)],
    }


def _resource_entries(resource_type: ResourceType) -> list[JSON]:
    main: JSON = {
        "name": resource_type.plural,
        "singularName": resource_type.singular,
        "namespaced": resource_type.namespaced,
        "kind": resource_type.kind,
        "verbs": list(resource_type.verbs),
    }
    if resource_type.short_names:
        main["shortNames"] = list(resource_type.short_names)
    if resource_type.categories:
        main["categories"] = list(resource_type.categories)
    entries = [main]
    for name, subresource in _subresources(resource_type):
        group, version, kind = subresource.kind or ("", "", resource_type.kind)
        entry: JSON = {
            "name": f"{resource_type.plural}/{name}",
            "singularName": "",
            "namespaced": resource_type.namespaced,
            "kind": kind,
            "verbs": list(subresource.verbs),
        }
        if version and (group, version) != (resource_type.group, resource_type.version):
            entry |= {"group": group, "version": version}
        entries.append(entry)
    return entries
