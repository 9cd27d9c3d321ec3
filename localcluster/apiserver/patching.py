"""PATCH bodies as functions from an object's present state to its next."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from localcluster.apiserver.decoding import JSON_PATCH, MERGE_PATCH, decode_patch, unknown_patch_type
from localcluster.apiserver.errors import bad_request, forbidden_field, invalid, rejected_patch
from localcluster.apiserver.requests import Context, options_type
from localcluster.builtin import component_of, components
from localcluster.patches import (
    InapplicablePatch,
    MalformedPatch,
    json_patch,
    merge_patch,
    strategic_merge_patch,
)
from localcluster.resource import JSON, ResourceType
from localcluster.schema_nodes import reference_to


def read_patch(resource_type: ResourceType, body: bytes, content_type: str) -> Callable[[JSON], JSON]:
    """Read the patch in a request's body. Its result shares the unchanged parts with the present object."""
    media_type, patch = decode_patch(body, content_type)
    if media_type == JSON_PATCH:
        return lambda obj: _checked(json_patch, obj, patch)
    if media_type == MERGE_PATCH:
        return lambda obj: _checked(merge_patch, obj, patch)
    if resource_type.custom:
        raise unknown_patch_type(strategic=False)
    schema = reference_to(component_of(resource_type))
    return lambda obj: _checked(strategic_merge_patch, obj, patch, schema, components())


def refuse_force(context: Context) -> None:
    """Raises ApiError if a patch that is no apply is to take fields from others."""
    if "force" in context.query:
        fault = forbidden_field("force", "may not be specified for non-apply patch")
        raise invalid(options_type("PatchOptions"), "", [fault])


def _checked(apply: Callable[..., JSON], *arguments: Any) -> JSON:
    try:
        return apply(*arguments)
    except MalformedPatch as error:
        raise bad_request(str(error)) from None
    except InapplicablePatch as error:
        raise rejected_patch(
            f"the server rejected our request due to an error in our request: {error}"
        ) from None
