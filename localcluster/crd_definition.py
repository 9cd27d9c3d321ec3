"""What a real API server refuses in a CustomResourceDefinition, beside what its own schema says.

After ValidateCustomResourceDefinition of Kubernetes (pkg/apis/apiextensions/validation/validation.go of its
apiextensions-apiserver). What all versions have in common is looked at once, at the place where the API
before v1 had it: that is why faults of the schema of a definition with one version have the path
`spec.validation.openAPIV3Schema`.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any

from localcluster.crd_check import check_crd_schema
from localcluster.field_errors import OMITTED, FieldError, Reason
from localcluster.jsonpath import JsonPathError, field_names
from localcluster.resource import JSON
from localcluster.schema_nodes import Components

_LABEL_1035 = re.compile(r"[a-z]([-a-z0-9]*[a-z0-9])?")
_SUBDOMAIN = re.compile(r"[a-z0-9]([-a-z0-9]*[a-z0-9])?(\.[a-z0-9]([-a-z0-9]*[a-z0-9])?)*")
_SUBDOMAIN_TEXT = (
    "a lowercase RFC 1123 subdomain must consist of lower case alphanumeric characters, '-' or '.', and must "
    "start and end with an alphanumeric character (e.g. 'example.com', regex used for validation is "
    "'[a-z0-9]([-a-z0-9]*[a-z0-9])?(\\.[a-z0-9]([-a-z0-9]*[a-z0-9])?)*')"
)
_LABEL_1035_TEXT = (
    "a DNS-1035 label must consist of lower case alphanumeric characters or '-', start with an alphabetic "
    "character, and end with an alphanumeric character (e.g. 'my-name',  or 'abc-123', regex used for "
    "validation is '[a-z]([-a-z0-9]*[a-z0-9])?')"
)
_ANY_CASE = "may have mixed case, but should otherwise match: "
_COLUMN_TYPES = ("boolean", "date", "integer", "number", "string")
_COLUMN_FORMATS = ("byte", "date", "date-time", "double", "float", "int32", "int64", "password")
_SELECTABLE_TYPES = ("string", "boolean", "integer")
_MAX_SELECTABLE = 8
_MAX_WARNING = 256
_ROOT_FIELDS = (
    "Description Type Format Title Maximum ExclusiveMaximum Minimum ExclusiveMinimum MaxLength MinLength "
    "Pattern MaxItems MinItems UniqueItems MultipleOf Required Items Properties ExternalDocs Example "
    "XPreserveUnknownFields XValidations"
)
"""What a schema may say at its root when the kind has the status subresource."""
_ALLOWED_AT_ROOT = {
    name[0].lower() + name[1:] for name in _ROOT_FIELDS.split() if not name.startswith("X")
} | {
    "x-kubernetes-preserve-unknown-fields",
    "x-kubernetes-validations",
}
_APPROVAL = "api-approved.kubernetes.io"


def _invalid(path: str, value: Any, detail: str) -> FieldError:
    return FieldError(path, Reason.INVALID, value, detail)


def _required(path: str, detail: str = "") -> FieldError:
    return FieldError(path, Reason.REQUIRED, "", detail)


def check_definition(definition: JSON, components: Components) -> list[FieldError]:
    """Everything that is wrong with a definition, whose names are complete; none if it would be taken."""
    spec = definition["spec"]
    versions = [version for version in spec.get("versions") or () if isinstance(version, dict)]
    return [
        *_name_faults(definition),
        *_group_faults(spec["group"]),
        *_version_faults(versions),
        *_names_faults(spec["names"]),
        *_served_faults(versions, components),
        *_approval_faults(definition),
        *_unknown_fields_faults(spec),
    ]


def _name_faults(definition: JSON) -> Iterator[FieldError]:
    name, spec = definition["metadata"]["name"], definition["spec"]
    if name != f"{spec['names']['plural']}.{spec['group']}":
        yield _invalid("metadata.name", name, 'must be spec.names.plural+"."+spec.group')


def _group_faults(group: str) -> Iterator[FieldError]:
    if len(group) > 253 or not _SUBDOMAIN.fullmatch(group):
        yield _invalid("spec.group", group, _SUBDOMAIN_TEXT)
    elif "." not in group:
        yield _invalid("spec.group", group, "should be a domain with at least one dot")


def _version_faults(versions: list[JSON]) -> Iterator[FieldError]:
    names = [version["name"] for version in versions]
    for index, name in enumerate(names):
        yield from _label_faults(f"spec.versions[{index}].name", name)
    if len(set(names)) < len(names):
        yield _invalid("spec.versions", OMITTED, "must contain unique version names")
    storing = [version for version in versions if version.get("storage")]
    if len(storing) != 1:
        detail = "must have exactly one version marked as storage version"
        yield _invalid("spec.versions", OMITTED, detail)
    if not storing:
        yield _invalid("status.storedVersions", [], "must have at least one stored version")


def _label_faults(path: str, text: str, *, any_case: bool = False) -> Iterator[FieldError]:
    tried = text.lower() if any_case else text
    if len(tried) > 63:
        yield _invalid(path, text, (_ANY_CASE if any_case else "") + "must be no more than 63 characters")
    elif not _LABEL_1035.fullmatch(tried):
        yield _invalid(path, text, (_ANY_CASE if any_case else "") + _LABEL_1035_TEXT)


def _names_faults(names: JSON) -> Iterator[FieldError]:
    for key in ("plural", "singular"):
        yield from _label_faults(f"spec.names.{key}", names[key])
    for key in ("kind", "listKind"):
        yield from _label_faults(f"spec.names.{key}", names[key], any_case=True)
    if names["kind"] == names["listKind"]:
        yield _invalid("spec.names.listKind", names["listKind"], "kind and listKind may not be the same")
    for key in ("shortNames", "categories"):
        for index, text in enumerate(names.get(key) or ()):
            yield from _label_faults(f"spec.names.{key}[{index}]", text)


def _shared(versions: list[JSON], key: str) -> bool:
    """Whether all versions say the same."""
    return bool(versions) and all(version.get(key) == versions[0].get(key) for version in versions)


def _served_faults(versions: list[JSON], components: Components) -> Iterator[FieldError]:
    """Yield faults of schemas, subresources, columns and selectable fields."""
    shares_schema = _shared(versions, "schema")
    places = {
        "schema": "spec.validation" if shares_schema else "",
        "subresources": "spec.subresources" if _shared(versions, "subresources") else "",
        "additionalPrinterColumns": (
            "spec.additionalPrinterColumns" if _shared(versions, "additionalPrinterColumns") else ""
        ),
        "selectableFields": (
            "spec.selectableFields" if shares_schema and _shared(versions, "selectableFields") else ""
        ),
    }
    for index, version in enumerate(versions):
        path = f"spec.versions[{index}]"
        yield from _deprecation_faults(version, f"{path}.deprecationWarning")
        if not (version.get("schema") or {}).get("openAPIV3Schema"):
            yield _required(f"{path}.schema.openAPIV3Schema", "schemas are required")
            continue
        where = {key: place or f"{path}.{key}" for key, place in places.items()}
        skipped = {key for key, place in places.items() if place and index}
        for key, check in _CHECKS.items():
            if key not in skipped:
                yield from check(version, where[key], components)


def _deprecation_faults(version: JSON, path: str) -> Iterator[FieldError]:
    warning = version.get("deprecationWarning")
    if warning is None:
        return
    if not version.get("deprecated"):
        yield _invalid(path, warning, "can only be set for deprecated versions")
    if not warning:
        yield _invalid(path, warning, "must not be an empty string")
    if len(warning.encode()) > _MAX_WARNING:
        yield _invalid(path, warning, f"must be <= {_MAX_WARNING} characters long")


def _schema_faults(version: JSON, path: str, components: Components) -> Iterator[FieldError]:
    schema = version["schema"]["openAPIV3Schema"]
    path = f"{path}.openAPIV3Schema"
    if "status" in (version.get("subresources") or {}) and any(
        value not in (None, "", [], {}, False) for key, value in schema.items() if key not in _ALLOWED_AT_ROOT
    ):
        detail = (
            f"only [{_ROOT_FIELDS}] fields are allowed at the root of the schema if the status subresource "
            "is enabled"
        )
        yield _invalid(path, OMITTED, detail)
    yield from check_crd_schema(schema, components, path)


def _subresource_faults(version: JSON, path: str, _: Components) -> Iterator[FieldError]:
    scale = (version.get("subresources") or {}).get("scale")
    if scale is None:
        return
    for key, root in (("specReplicasPath", ".spec"), ("statusReplicasPath", ".status")):
        if not scale.get(key):
            yield _required(f"{path}.scale.{key}")
        else:
            detail = f"should be a json path under {root}"
            yield from _path_faults(scale[key], f"{path}.scale.{key}", (f"{root}.",), detail)
    if selector := scale.get("labelSelectorPath"):
        detail = "should be a json path under either .spec or .status"
        yield from _path_faults(selector, f"{path}.scale.labelSelectorPath", (".spec.", ".status."), detail)


def _path_faults(text: str, path: str, roots: tuple[str, ...], detail: str) -> Iterator[FieldError]:
    if not text.startswith("."):
        yield _invalid(path, text, "must be a simple json path starting with .")
    elif not text.startswith(roots):
        yield _invalid(path, text, detail)


def _column_faults(version: JSON, path: str, _: Components) -> Iterator[FieldError]:
    for index, column in enumerate(version.get("additionalPrinterColumns") or ()):
        where = f"{path}[{index}]"
        if not column.get("name"):
            yield _required(f"{where}.name")
        types = f"must be one of {','.join(_COLUMN_TYPES)}"
        if not column.get("type"):
            yield _required(f"{where}.type", types)
        elif column["type"] not in _COLUMN_TYPES:
            yield _invalid(f"{where}.type", column["type"], types)
        if column.get("format") and column["format"] not in _COLUMN_FORMATS:
            detail = f"must be one of {','.join(_COLUMN_FORMATS)}"
            yield _invalid(f"{where}.format", column["format"], detail)
        if not column.get("jsonPath"):
            yield _required(f"{where}.JSONPath")
        else:
            yield from _path_faults(column["jsonPath"], f"{where}.JSONPath", (".",), "")


def _selectable_faults(version: JSON, path: str, _: Components) -> Iterator[FieldError]:
    seen: set[tuple[str, ...]] = set()
    schema = version["schema"]["openAPIV3Schema"]
    for index, selectable in enumerate(version.get("selectableFields") or ()):
        where, text = f"{path}[{index}].jsonPath", selectable.get("jsonPath") or ""
        if not text:
            yield _required(where)
            continue
        try:
            names = field_names(text)
            found = _field_schema(schema, names)
        except (JsonPathError, KeyError):
            yield _invalid(where, text, "is an invalid path: does not refer to a valid field")
            continue
        if names[0] == "metadata":
            yield _invalid(where, text, "must not point to fields in metadata")
        if found.get("type") not in _SELECTABLE_TYPES:
            detail = (
                "must point to a field of type string, boolean or integer. Enum string fields and strings "
                "with formats are allowed."
            )
            yield _invalid(where, text, detail)
        if names in seen:
            yield FieldError(where, Reason.DUPLICATE, text)
        seen.add(names)
    if len(seen) > _MAX_SELECTABLE:
        yield FieldError(path, Reason.TOO_MANY, len(seen), f"must have at most {_MAX_SELECTABLE} items")


def _field_schema(schema: JSON, names: tuple[str, ...]) -> JSON:
    """The schema of a field; raises KeyError where there is none."""
    for name in names:
        schema = schema["properties"][name]
    return schema


_CHECKS = {
    "schema": _schema_faults,
    "subresources": _subresource_faults,
    "additionalPrinterColumns": _column_faults,
    "selectableFields": _selectable_faults,
}


def _approval_faults(definition: JSON) -> Iterator[FieldError]:
    """Groups of the Kubernetes project itself are protected."""
    group = definition["spec"]["group"]
    protected = any(group == name or group.endswith(f".{name}") for name in ("k8s.io", "kubernetes.io"))
    if protected and not (definition["metadata"].get("annotations") or {}).get(_APPROVAL):
        detail = (
            f'protected groups must have approval annotation "{_APPROVAL}", see '
            "https://github.com/kubernetes/enhancements/pull/1111"
        )
        yield _required(f"metadata.annotations[{_APPROVAL}]", detail)


def _unknown_fields_faults(spec: JSON) -> Iterator[FieldError]:
    if spec.get("preserveUnknownFields"):
        detail = (
            "cannot set to true, set x-kubernetes-preserve-unknown-fields to true in "
            "spec.versions[*].schema instead"
        )
        yield _invalid("spec.preserveUnknownFields", True, detail)
