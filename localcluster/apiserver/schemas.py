"""The schemas of all types, ready for use: pruning, defaulting and validating objects."""

from __future__ import annotations

from localcluster.resource import JSON, ResourceType


class Schemas:
    """Compiled schemas, kept for each type."""

    def prepare(self, resource_type: ResourceType, obj: JSON, old: JSON | None) -> tuple[JSON, list[str]]:
        return obj, []

    def faults(self, resource_type: ResourceType, obj: JSON, old: JSON | None) -> list[JSON]:
        return []
