"""CustomResourceDefinitions: what they must be, the types they add, and the end of what they defined."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import datetime

from localcluster.apiserver.errors import forbidden_field, invalid_value, required
from localcluster.apiserver.times import rfc3339, utc_now
from localcluster.builtin import components
from localcluster.crd_check import check_crd_schema
from localcluster.resource import JSON, ResourceType

DEFINITIONS = "customresourcedefinitions.apiextensions.k8s.io"
CLEANUP_FINALIZER = "customresourcecleanup.apiextensions.k8s.io"


def prepare(obj: JSON) -> None:
    """What a new definition gets; it is served from the moment it is stored."""
    names = obj["spec"]["names"]
    names.setdefault("singular", names["kind"].lower())
    names.setdefault("listKind", f"{names['kind']}List")
    finalizers = obj["metadata"].setdefault("finalizers", [])
    if CLEANUP_FINALIZER not in finalizers:
        finalizers.append(CLEANUP_FINALIZER)
    obj["status"] = accepted_status(obj, utc_now())


def accepted_status(obj: JSON, now: datetime) -> JSON:
    def condition(kind: str, reason: str, message: str) -> JSON:
        since = {"lastTransitionTime": rfc3339(now), "reason": reason, "message": message}
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
    """What is wrong with a definition beyond its own schema."""
    spec, names = obj["spec"], obj["spec"]["names"]
    found: list[JSON] = []
    expected = f"{names['plural']}.{spec['group']}"
    if obj["metadata"]["name"] != expected:
        why = 'must be spec.names.plural+"."+spec.group'
        found.append(invalid_value("metadata.name", obj["metadata"]["name"], why))
    if "." not in spec["group"]:
        found.append(invalid_value("spec.group", spec["group"], "should be a domain with at least one dot"))
    storing = [version["name"] for version in _versions(obj) if version.get("storage")]
    if len(storing) != 1:
        why = "must have exactly one version marked as storage version"
        found.append(invalid_value("spec.versions", storing, why))
    for index, version in enumerate(_versions(obj)):
        path = f"spec.versions[{index}].schema.openAPIV3Schema"
        schema = (version.get("schema") or {}).get("openAPIV3Schema")
        if not schema:
            found.append(required(path, "schemas are required"))
        else:
            found += [fault.cause() for fault in check_crd_schema(schema, components(), path)]
    strategy = (spec.get("conversion") or {}).get("strategy", "None")
    if strategy != "None":
        why = "this cluster calls no conversion webhooks; versions may differ in apiVersion only"
        found.append(invalid_value("spec.conversion.strategy", strategy, why))
    return found


def update_faults(old: JSON, new: JSON) -> list[JSON]:
    """What a definition may not become."""
    found = []
    for path in (("group",), ("scope",), ("names", "plural"), ("names", "kind")):
        before, after = old["spec"], new["spec"]
        for part in path:
            before, after = before[part], after[part]
        if before != after:
            found.append(forbidden_field(f"spec.{'.'.join(path)}", "field is immutable"))
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
