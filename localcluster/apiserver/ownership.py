"""`metadata.managedFields`: who wrote which field of an object that somebody has applied."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime

from localcluster.apiserver.requests import Context
from localcluster.apply import Writer, after_update
from localcluster.builtin import component_of, components
from localcluster.client.clock import timestamp
from localcluster.openapi import custom_schema
from localcluster.resource import JSON, ResourceType
from localcluster.schema_nodes import reference_to

_USER_AGENT_MAX = 128


def writer_of(context: Context) -> Writer:
    """Return who sends a request: a field manager or, without one, a program."""
    program = context.user_agent.partition("/")[0][:_USER_AGENT_MAX]
    return Writer(
        context.query.get("fieldManager") or program,
        context.type.api_version,
        context.subresource,
        separate_status="status" in context.type.subresources,
    )


def schema_of(resource_type: ResourceType) -> JSON:
    """Return the schema by which the objects of a type have owners, part by part."""
    return custom_schema(resource_type) if resource_type.custom else reference_to(component_of(resource_type))


def set_owners(metadata: JSON, owners: Sequence[JSON]) -> None:
    """Write the managedFields of an object, if it has any."""
    metadata.pop("managedFields", None)
    if owners:
        metadata["managedFields"] = [*owners]


def owners_after(context: Context, old: JSON, new: JSON, now: datetime) -> list[JSON]:
    """Return the managedFields of an object after a write that is no apply."""
    entries: list[JSON] = old["metadata"].get("managedFields") or []
    if not entries:
        return []
    schema = schema_of(context.type)
    return after_update(old, new, entries, writer_of(context), timestamp(now), schema, components())
