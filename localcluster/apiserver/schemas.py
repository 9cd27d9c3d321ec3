"""The schemas of all types, ready for use: pruning, defaulting and validating objects."""

from __future__ import annotations

from localcluster.builtin import components
from localcluster.resource import JSON, ResourceKey, ResourceType
from localcluster.schema import CompiledSchema


class Schemas:
    """Compiled schemas. A type is compiled when it is first used, and again when its CRD changed."""

    def __init__(self) -> None:
        self._compiled: dict[ResourceKey, tuple[JSON, CompiledSchema]] = {}

    def prepare(self, resource_type: ResourceType, obj: JSON, old: JSON | None) -> tuple[JSON, list[str]]:
        """The object with its defaults and without what the schema does not know, and that one's paths."""
        schema = self._schema(resource_type)
        pruned, unknown = schema.prune(obj, old)
        return schema.default(pruned, old), unknown

    def faults(self, resource_type: ResourceType, obj: JSON, old: JSON | None) -> list[JSON]:
        """Return the faults of an object, as causes of a Status."""
        return [error.cause() for error in self._schema(resource_type).validate(obj, old)]

    def _schema(self, resource_type: ResourceType) -> CompiledSchema:
        source = resource_type.schema or {}
        known = self._compiled.get(resource_type.key)
        if known is not None and known[0] is source:
            return known[1]
        compiled = CompiledSchema(source, components(), custom=resource_type.custom)
        self._compiled[resource_type.key] = (source, compiled)
        return compiled
