"""Request bodies: their media types, and whether they are an object of the kind that the path names."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import yaml

from localcluster.apiserver.errors import ApiError, bad_request, unsupported_media_type
from localcluster.apiserver.protobuf import ProtobufError, UnknownMessage, decode
from localcluster.apiserver.requests import Context, FieldValidation
from localcluster.json_text import JsonError, from_yaml, loads
from localcluster.resource import JSON, ResourceType
from localcluster.value_checks import type_name

JSON_TYPE = "application/json"
JSON_PATCH = "application/json-patch+json"
MERGE_PATCH = "application/merge-patch+json"
STRATEGIC_PATCH = "application/strategic-merge-patch+json"
PROTOBUF = "application/vnd.kubernetes.protobuf"
APPLY_PATCH = "application/apply-patch+yaml"
_YAML = ("application/yaml", "text/yaml", APPLY_PATCH)
_OTHER_FORM_SENTENCE = (
    "this cluster cannot read this body of the type {media_type}{why}: write the object to a file and use "
    "`kubectl apply -f` (`kubectl create ... --dry-run=client -o yaml` prints it)"
)


class _YamlLoader(yaml.CSafeLoader):
    """Reads times as strings, as Kubernetes does."""

    yaml_implicit_resolvers = {  # noqa: RUF012
        start: [resolver for resolver in resolvers if resolver[0] != "tag:yaml.org,2002:timestamp"]
        for start, resolvers in yaml.CSafeLoader.yaml_implicit_resolvers.items()
    }


def media_type_of(content_type: str) -> str:
    return content_type.partition(";")[0].strip().lower() or JSON_TYPE


def _without_aliases(body: bytes) -> Any:
    """The value of a YAML text; with aliases, a few lines could say more than fits in memory."""
    if any(isinstance(event, yaml.AliasEvent) for event in yaml.parse(body, Loader=_YamlLoader)):
        raise JsonError("it has aliases, which this cluster does not read")
    return yaml.load(body, Loader=_YamlLoader)


def decode_body(body: bytes, content_type: str) -> Any:
    """The value in a JSON, YAML or protobuf body; nothing for an empty one."""
    media_type = media_type_of(content_type)
    if not body:
        return None
    try:
        if media_type in _YAML:
            return from_yaml(_without_aliases(body))
        if media_type == JSON_TYPE:
            return loads(body)
        if media_type == PROTOBUF:
            return decode(body)
    except UnknownMessage as error:
        raise unsupported_media_type(
            _OTHER_FORM_SENTENCE.format(media_type=media_type, why=f", because {error}")
        ) from None
    except (JsonError, yaml.YAMLError, ProtobufError, ValueError) as error:
        raise bad_request(f"the body of the request cannot be read: {error}") from None
    raise unsupported_media_type(_OTHER_FORM_SENTENCE.format(media_type=media_type, why=""))


def decode_patch(body: bytes, content_type: str) -> tuple[str, Any]:
    """The media type of a patch and its value."""
    media_type = media_type_of(content_type)
    if media_type not in (JSON_PATCH, MERGE_PATCH, STRATEGIC_PATCH):
        raise unknown_patch_type(strategic=True)
    try:
        return media_type, loads(body)
    except JsonError as error:
        raise bad_request(f"the patch cannot be read: {error}") from None


def unknown_patch_type(*, strategic: bool) -> ApiError:
    accepted = [JSON_PATCH, MERGE_PATCH] + ([STRATEGIC_PATCH] if strategic else [])
    message = "the body of the request was in an unknown format - accepted media types include: "
    return unsupported_media_type(message + ", ".join(accepted))


def check_object(resource_type: ResourceType, body: Any) -> JSON:
    """The body as an object of the kind, with `apiVersion`, `kind` and a well-formed `metadata`."""
    if not isinstance(body, dict):
        raise bad_request("the body of the request is not an object")
    obj: JSON = dict(body)
    expected = {"apiVersion": resource_type.api_version, "kind": resource_type.kind}
    for field, value in expected.items():
        given = obj.get(field)
        if not given and resource_type.custom:
            raise bad_request(f"Object '{field[0].upper()}{field[1:]}' is missing in the body of the request")
        if given and given != value:
            raise bad_request(
                f"the {field} in the data ({given}) does not match the expected {field} ({value})"
            )
        obj[field] = value
    obj["metadata"] = check_metadata(resource_type, obj.get("metadata"))
    return obj


def check_metadata(resource_type: ResourceType, metadata: Any) -> JSON:
    """A copy of `metadata`, after making sure that its parts have the types that the server relies on."""
    copied: JSON = dict(metadata) if isinstance(metadata, dict) else {}
    fault = _shape_fault(metadata)
    if fault:
        raise bad_request(f"{cannot_be_handled(resource_type)}: {fault}")
    return {key: value for key, value in copied.items() if value is not None}


def cannot_be_handled(resource_type: ResourceType) -> str:
    kind, version = resource_type.kind, resource_type.version
    return f'{kind} in version "{version}" cannot be handled as a {kind}'


def _shape_fault(metadata: Any) -> str | None:
    if metadata is not None and not isinstance(metadata, dict):
        return "metadata must be an object"
    metadata = metadata or {}
    for field in ("name", "generateName", "namespace", "uid", "resourceVersion"):
        if not isinstance(metadata.get(field) or "", str):
            return f"metadata.{field} must be a string"
    for field in ("labels", "annotations"):
        values = metadata.get(field) or {}
        if not isinstance(values, dict):
            return f"metadata.{field} must be a map of strings"
        for key, value in values.items():
            if not isinstance(value, str):
                return f"metadata.{field}.{key} must be a string, not {type_name(value)}"
    finalizers = metadata.get("finalizers") or []
    if not isinstance(finalizers, list) or not all(isinstance(each, str) for each in finalizers):
        return "metadata.finalizers must be a list of strings"
    owners = metadata.get("ownerReferences") or []
    if not isinstance(owners, list) or not all(isinstance(each, dict) for each in owners):
        return "metadata.ownerReferences must be a list of objects"
    return None


def report_unknown_fields(context: Context, unknown: Sequence[str]) -> None:
    """Refuse, warn of, or drop silently what the schema does not know."""
    validation = context.field_validation()
    named = [f'unknown field "{path}"' for path in unknown]
    if not named or validation is FieldValidation.IGNORE:
        return
    if validation is FieldValidation.STRICT:
        raise bad_request(f"{cannot_be_handled(context.type)}: strict decoding error: {', '.join(named)}")
    context.warnings.extend(named)
