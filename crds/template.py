"""The Pod template of an ElasticJob or NodeCheck: what of it has to have its shape, and is checked at apply.

A template is kept as it is, and the API server has the last word on it when the Pod is made. But what dlr
itself reads or adds to must be a list where a list belongs. So the CRD says the shape of these fields, and
`kubectl apply` names the field. The model is as strict, but for the greatest lengths: an object may be older
than its CRD. Amounts of CPU and memory are left to the API server: one may be a number with a fraction, which
no CRD can say.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Annotated, Any

from pydantic import AfterValidator, Field

Schema = dict[str, Any]

MAX_CONTAINERS = 64
MAX_ITEMS = 4_096
"""Of every other list and map: far more than there is room for in a Pod."""
_KINDS: dict[str, type] = {"object": dict, "array": list, "string": str, "integer": int}
_SHORTEST = {"array": "minItems", "string": "minLength"}


def _object(required: tuple[str, ...] = (), **properties: Schema) -> Schema:
    schema: Schema = {"type": "object", "x-kubernetes-preserve-unknown-fields": True}
    return schema | ({"required": list(required)} if required else {}) | {"properties": properties}


def _list(of: Schema, **more: Any) -> Schema:
    return {"type": "array", "items": of, "maxItems": MAX_ITEMS} | more


def _optional(schema: Schema) -> Schema:
    """As in a Pod, null is the same as nothing."""
    return schema | {"nullable": True}


_FREE: Schema = {"type": "object", "x-kubernetes-preserve-unknown-fields": True}
_TEXT: Schema = {"type": "string"}
_NAME: Schema = {"type": "string", "minLength": 1}
_TEXTS: Schema = {"type": "object", "additionalProperties": _TEXT, "maxProperties": MAX_ITEMS}


def _container() -> Schema:
    variable = _object(("name",), name=_NAME, value=_optional(_TEXT), valueFrom=_optional(_FREE))
    resources = _object(limits=_optional(_FREE), requests=_optional(_FREE))
    port = _object(("containerPort",), name=_optional(_TEXT), containerPort={"type": "integer"})
    return _object(
        ("name", "image"),
        name={"type": "string", "minLength": 1, "maxLength": 63},
        image=_NAME,
        command=_optional(_list(_TEXT)),
        args=_optional(_list(_TEXT)),
        env=_optional(_list(variable)),
        envFrom=_optional(_list(_FREE)),
        resources=_optional(resources),
        ports=_optional(_list(port)),
        volumeMounts=_optional(_list(_object(("name", "mountPath"), name=_NAME, mountPath=_NAME))),
        securityContext=_optional(_FREE),
    )


def _affinity() -> Schema:
    term = _object(matchExpressions=_optional(_list(_FREE)), matchFields=_optional(_list(_FREE)))
    required = _optional(_object(nodeSelectorTerms=_optional(_list(term))))
    node_affinity = _object(
        requiredDuringSchedulingIgnoredDuringExecution=required,
        preferredDuringSchedulingIgnoredDuringExecution=_optional(_list(_FREE)),
    )
    return _object(nodeAffinity=_optional(node_affinity))


def _template() -> Schema:
    metadata = _object(
        labels=_optional(_TEXTS), annotations=_optional(_TEXTS), finalizers=_optional(_list(_TEXT))
    )
    spec = _object(
        ("containers",),
        containers=_list(_container(), minItems=1, maxItems=MAX_CONTAINERS),
        initContainers=_optional(_list(_container(), maxItems=MAX_CONTAINERS)),
        volumes=_optional(_list(_object(("name",), name=_NAME))),
        tolerations=_optional(_list(_FREE)),
        nodeSelector=_optional(_TEXTS),
        affinity=_optional(_affinity()),
        serviceAccountName=_optional(_TEXT),
        serviceAccount=_optional(_TEXT),
        schedulerName=_optional(_TEXT),
        priorityClassName=_optional(_TEXT),
        terminationGracePeriodSeconds=_optional({"type": "integer"}),
    )
    return _object(("spec",), metadata=_optional(metadata), spec=spec)


POD_TEMPLATE_SCHEMA = _template()


def fault_of(value: Any, schema: Schema = POD_TEMPLATE_SCHEMA, path: str = "") -> str | None:
    """What is first wrong with the shape of a value, with the field's path; None if nothing is."""
    if value is None and schema.get("nullable"):
        return None
    kind = schema["type"]
    if not isinstance(value, _KINDS[kind]) or isinstance(value, bool):
        return f"{path}: must be of type {kind}"
    if isinstance(value, str | list) and len(value) < schema.get(_SHORTEST[kind], 0):
        return f"{path}: must not be empty"
    missing = [name for name in schema.get("required", ()) if isinstance(value, dict) and name not in value]
    if missing:
        return f"{path}.{missing[0]}: is required"
    faults = (fault_of(inner, of, f"{path}{at}") for inner, of, at in _parts(value, schema))
    return next((fault for fault in faults if fault is not None), None)


def _parts(value: Any, schema: Schema) -> Iterator[tuple[Any, Schema, str]]:
    """What is in a list or an object and has a schema of its own, with its place."""
    if schema["type"] == "array":
        yield from ((item, schema["items"], f"[{place}]") for place, item in enumerate(value))
    elif schema["type"] == "object":
        known, other = schema.get("properties", {}), schema.get("additionalProperties")
        found = ((name, known.get(name, other)) for name in value)
        yield from ((value[name], of, f".{name}") for name, of in found if of is not None)


def _checked(template: dict[str, Any]) -> dict[str, Any]:
    if (fault := fault_of(template)) is not None:
        raise ValueError(fault.lstrip("."))
    return template


PodTemplate = Annotated[
    dict[str, Any], Field(json_schema_extra=POD_TEMPLATE_SCHEMA), AfterValidator(_checked)
]
"""Kept as it is. Raises ValueError, with the field's path, for one that the CRD would refuse."""
