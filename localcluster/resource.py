"""Resources that the API server serves: one `ResourceType` a kind and version, and their registry.

A built-in type and one that a CustomResourceDefinition adds look the same from here on, so that discovery,
OpenAPI, Tables and the handlers have no second path for CRDs.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

JSON = dict[str, Any]

ALL_VERBS = ("create", "delete", "deletecollection", "get", "list", "patch", "update", "watch")

ResourceKey = tuple[str, str, str]
"""(group, version, plural)"""


@dataclass(frozen=True)
class ResourceType:
    """One served kind in one version."""

    group: str
    version: str
    kind: str
    plural: str
    singular: str
    short_names: tuple[str, ...] = ()
    categories: tuple[str, ...] = ()
    namespaced: bool = True
    subresources: frozenset[str] = frozenset()
    """status, scale, log, binding, eviction, token"""
    schema: JSON | None = field(default=None, hash=False, compare=False)
    """OpenAPI v3, structural."""
    printer_columns: tuple[JSON, ...] = field(default=(), hash=False, compare=False)
    """additionalPrinterColumns, as CRDs spell them."""
    scale: JSON | None = field(default=None, hash=False, compare=False)
    """specReplicasPath, statusReplicasPath, labelSelectorPath"""
    selectable_fields: frozenset[str] = frozenset()
    """Fields that a field selector may name beside metadata: `spec.color`."""
    list_kind: str = ""
    """Defaults to the kind followed by `List`."""
    custom: bool = False
    """Added by a CustomResourceDefinition (no strategic merge patch, schema-driven pruning)."""
    verbs: tuple[str, ...] = ALL_VERBS
    """Fewer for kinds that only answer questions, such as SelfSubjectAccessReview (create)."""

    def __post_init__(self) -> None:
        if not self.list_kind:
            object.__setattr__(self, "list_kind", f"{self.kind}List")

    @property
    def key(self) -> ResourceKey:
        return (self.group, self.version, self.plural)

    @property
    def api_version(self) -> str:
        return f"{self.group}/{self.version}" if self.group else self.version

    @property
    def group_resource(self) -> str:
        """How messages name it: `pods`, `leases.coordination.k8s.io`."""
        return f"{self.plural}.{self.group}" if self.group else self.plural

    @property
    def stored(self) -> bool:
        """Whether objects of this kind exist; reviews only answer the request that creates them."""
        return "get" in self.verbs


class Registry:
    """The types served now. `generation` moves with every change, so that answers may be cached by it."""

    def __init__(self, types: tuple[ResourceType, ...] = ()) -> None:
        self._types: dict[ResourceKey, ResourceType] = {}
        self.generation = 0
        for resource_type in types:
            self.add(resource_type)

    def __iter__(self) -> Iterator[ResourceType]:
        return iter(tuple(self._types.values()))

    def __len__(self) -> int:
        return len(self._types)

    def lookup(self, group: str, version: str, plural: str) -> ResourceType | None:
        return self._types.get((group, version, plural))

    def by_kind(self, api_version: str, kind: str) -> ResourceType | None:
        """The type an owner reference or a manifest names."""
        for resource_type in self._types.values():
            if resource_type.kind == kind and resource_type.api_version == api_version:
                return resource_type
        return None

    def versions(self, group: str) -> tuple[str, ...]:
        """The served versions of a group, in the order in which they were added."""
        return tuple(dict.fromkeys(t.version for t in self._types.values() if t.group == group))

    def groups(self) -> tuple[str, ...]:
        """All groups with a name, in the order in which they were added."""
        return tuple(dict.fromkeys(t.group for t in self._types.values() if t.group))

    def add(self, resource_type: ResourceType) -> None:
        """Serve a type, in place of an earlier one with the same key."""
        self._types[resource_type.key] = resource_type
        self.generation += 1

    def remove(self, key: ResourceKey) -> None:
        if self._types.pop(key, None) is not None:
            self.generation += 1
