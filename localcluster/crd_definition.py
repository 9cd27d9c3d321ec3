"""What makes a CustomResourceDefinition impossible to serve, beside what its own schema says.

Kubernetes' own API server refuses more. A schema that all versions share is named at the place where the API
before v1 had it, as there.
"""

from __future__ import annotations

from collections.abc import Iterator

from localcluster.crd_check import check_crd_schema
from localcluster.field_errors import OMITTED, FieldError, Reason
from localcluster.resource import JSON
from localcluster.schema_nodes import Components


def check_definition(definition: JSON, components: Components) -> list[FieldError]:
    """Everything that is wrong with a definition, whose names are complete; none if it is taken."""
    versions = [version for version in definition["spec"].get("versions") or () if isinstance(version, dict)]
    return [
        *_name_faults(definition),
        *_version_faults(versions),
        *_schema_faults(versions, components),
        *_scale_faults(versions),
    ]


def _name_faults(definition: JSON) -> Iterator[FieldError]:
    name, spec = definition["metadata"]["name"], definition["spec"]
    if name != f"{spec['names']['plural']}.{spec['group']}":
        yield FieldError("metadata.name", Reason.INVALID, name, 'must be spec.names.plural+"."+spec.group')


def _version_faults(versions: list[JSON]) -> Iterator[FieldError]:
    if len({version["name"] for version in versions}) < len(versions):
        yield FieldError("spec.versions", Reason.INVALID, OMITTED, "must contain unique version names")
    if sum(bool(version.get("storage")) for version in versions) != 1:
        detail = "must have exactly one version marked as storage version"
        yield FieldError("spec.versions", Reason.INVALID, OMITTED, detail)


def _schema_faults(versions: list[JSON], components: Components) -> Iterator[FieldError]:
    is_shared = all(version.get("schema") == versions[0].get("schema") for version in versions)
    for index, version in enumerate(versions):
        path = f"spec.versions[{index}].schema.openAPIV3Schema"
        schema = (version.get("schema") or {}).get("openAPIV3Schema")
        if not schema:
            yield FieldError(path, Reason.REQUIRED, "", "schemas are required")
        elif not is_shared:
            yield from check_crd_schema(schema, components, path)
        elif index == 0:
            yield from check_crd_schema(schema, components, "spec.validation.openAPIV3Schema")


def _scale_faults(versions: list[JSON]) -> Iterator[FieldError]:
    for index, version in enumerate(versions):
        scale = (version.get("subresources") or {}).get("scale") or {}
        for key, root in (("specReplicasPath", ".spec."), ("statusReplicasPath", ".status.")):
            if key in scale and not scale[key].startswith(root):
                path = f"spec.versions[{index}].subresources.scale.{key}"
                yield FieldError(path, Reason.INVALID, scale[key], f"should be a json path under {root[:-1]}")
