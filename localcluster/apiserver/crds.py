"""CustomResourceDefinitions: what they must be, the types they add, and the end of what they defined."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import datetime

from localcluster.apiserver.errors import cause, invalid_value, required
from localcluster.builtin import components
from localcluster.cel import CelSyntaxError
from localcluster.client.clock import timestamp, utc_now
from localcluster.resource import JSON, ResourceType
from localcluster.schema import CompiledSchema

DEFINITIONS = "customresourcedefinitions.apiextensions.k8s.io"
CLEANUP_FINALIZER = "customresourcecleanup.apiextensions.k8s.io"


def completed(obj: JSON) -> JSON:
    """Fill in the names that follow from the kind. The object's form is not checked yet."""
    spec = obj.get("spec")
    names = spec.get("names") if isinstance(spec, dict) else None
    kind = names.get("kind") if isinstance(names, dict) else None
    if not isinstance(spec, dict) or not isinstance(names, dict) or not isinstance(kind, str) or not kind:
        return obj
    implied = {"singular": kind.lower(), "listKind": f"{kind}List"}
    absent = {key: name for key, name in implied.items() if not names.get(key)}
    return {**obj, "spec": {**spec, "names": {**names, **absent}}} if absent else obj


def prepare(obj: JSON) -> None:
    """Complete a new definition; it is served from the moment it is stored."""
    finalizers = obj["metadata"].setdefault("finalizers", [])
    if CLEANUP_FINALIZER not in finalizers:
        finalizers.append(CLEANUP_FINALIZER)
    obj["status"] = accepted_status(obj, utc_now())


def accepted_status(obj: JSON, now: datetime) -> JSON:
    def condition(kind: str, reason: str, message: str) -> JSON:
        since = {"lastTransitionTime": timestamp(now), "reason": reason, "message": message}
        return {"type": kind, "status": "True", **since}

    return {
        "acceptedNames": dict(obj["spec"]["names"]),
        "storedVersions": [
            version["name"] for version in _versions(obj) if version.get("storage") and "name" in version
        ],
        "conditions": [
            condition("NamesAccepted", "NoConflicts", "no conflicts found"),
            condition("Established", "InitialNamesAccepted", "the initial names have been accepted"),
        ],
    }


def _versions(obj: JSON) -> list[JSON]:
    return [version for version in obj["spec"].get("versions") or () if isinstance(version, dict)]


def faults(obj: JSON) -> list[JSON]:
    """Return what makes a definition impossible to serve, beyond the faults by its own schema."""
    spec, versions, name = obj["spec"], _versions(obj), obj["metadata"]["name"]
    found = []
    if name != f"{spec['names']['plural']}.{spec['group']}":
        found.append(invalid_value("metadata.name", name, 'must be spec.names.plural+"."+spec.group'))
    if len({version["name"] for version in versions}) < len(versions):
        found.append(_versions_fault("must contain unique version names"))
    if sum(bool(version.get("storage")) for version in versions) != 1:
        found.append(_versions_fault("must have exactly one version marked as storage version"))
    for index, version in enumerate(versions):
        schema = (version.get("schema") or {}).get("openAPIV3Schema")
        found += _schema_faults(f"spec.versions[{index}].schema.openAPIV3Schema", schema)
    strategy = (spec.get("conversion") or {}).get("strategy", "None")
    if strategy != "None":
        why = "this cluster calls no conversion webhooks; versions may differ in apiVersion only"
        found.append(invalid_value("spec.conversion.strategy", strategy, why))
    return found


def _versions_fault(why: str) -> JSON:
    return cause("spec.versions", "FieldValueInvalid", f"Invalid value: {why}")


def _schema_faults(path: str, schema: JSON | None) -> list[JSON]:
    """Why objects cannot be held to a schema: its references, its patterns, its rules."""
    if not schema:
        return [required(path, "schemas are required")]
    try:
        CompiledSchema(schema, components(), custom=True)
    except (CelSyntaxError, LookupError, TypeError, ValueError) as error:
        return [invalid_value(path, "", f"this cluster cannot use the schema: {error}")]
    return []


def update_faults(old: JSON, new: JSON) -> list[JSON]:
    """Return the changes of a definition that are not allowed."""
    found = []
    for path in (("group",), ("scope",), ("names", "plural"), ("names", "kind")):
        before, after = old["spec"], new["spec"]
        for part in path:
            before, after = before[part], after[part]
        if before != after:
            found.append(invalid_value(f"spec.{'.'.join(path)}", after, "field is immutable"))
    kept = {version["name"] for version in _versions(new)}
    for index, name in enumerate((old.get("status") or {}).get("storedVersions") or ()):
        if name not in kept:
            why = "missing from spec.versions; it was previously a storage version"
            found.append(invalid_value(f"status.storedVersions[{index}]", name, why))
    return found


def types_of(obj: JSON) -> Iterator[ResourceType]:
    """The types that a definition serves."""
    spec, names = obj["spec"], obj["spec"]["names"]
    for version in _versions(obj):
        if not version.get("served", True):
            continue
        subresources = version.get("subresources") or {}
        yield ResourceType(
            group=spec["group"],
            version=version["name"],
            kind=names["kind"],
            plural=names["plural"],
            singular=names.get("singular") or names["kind"].lower(),
            short_names=tuple(names.get("shortNames") or ()),
            categories=tuple(names.get("categories") or ()),
            namespaced=spec["scope"] == "Namespaced",
            subresources=frozenset(name for name in ("status", "scale") if name in subresources),
            schema=version["schema"]["openAPIV3Schema"],
            printer_columns=tuple(version.get("additionalPrinterColumns") or _DEFAULT_COLUMNS),
            scale=subresources.get("scale"),
            selectable_fields=frozenset(
                each["jsonPath"].removeprefix(".") for each in version.get("selectableFields") or ()
            ),
            list_kind=names.get("listKind", ""),
            custom=True,
        )


_DEFAULT_COLUMNS: tuple[JSON, ...] = (
    {"name": "Age", "type": "date", "jsonPath": ".metadata.creationTimestamp"},
)
