"""The Pod template of an ElasticJob or NodeCheck, and its validation at apply.

dlr passes a template on as it is, and the API server validates it when the Pod is created. But the fields
that dlr itself reads or extends must have the right type, such as a list. So the CRD defines their types
and maximum lengths, and `kubectl apply` names the wrong field. Amounts of CPU and memory are left to the
API server: they may be fractional numbers, which a CRD cannot express.
"""

from __future__ import annotations

from typing import Annotated, Any

from pydantic import AfterValidator, Field

from crds import names
from crds.model import cel, check_depth, rules

Schema = dict[str, Any]

MAX_CONTAINERS = 64
MAX_RESOURCES = 32
"""Entries of a container's limits, and of its requests."""
MAX_WORD = 131_072
"""Bytes of a word of a command, or of a variable's value: Linux's MAX_ARG_STRLEN."""
MAX_PATH = 4_096
MAX_ANNOTATION = 262_144
_MAX_INT32 = (1 << 31) - 1
MAX_ITEMS = 4_096
"""Entries of every other list and map: far more than fit into a Pod."""


def _object(required: tuple[str, ...] = (), **properties: Schema) -> Schema:
    schema: Schema = {"type": "object", "x-kubernetes-preserve-unknown-fields": True}
    return schema | ({"required": list(required)} if required else {}) | {"properties": properties}


def _list(of: Schema, **more: Any) -> Schema:
    return {"type": "array", "items": of, "maxItems": MAX_ITEMS} | more


def _optional(schema: Schema) -> Schema:
    """Allow null where a Pod allows it."""
    return schema | {"nullable": True}


_FREE: Schema = {"type": "object", "x-kubernetes-preserve-unknown-fields": True}
_RESOURCES: Schema = _FREE | {"maxProperties": MAX_RESOURCES}


def _text(limit: int, **more: Any) -> Schema:
    return {"type": "string", "maxLength": limit} | more


_SHORT: Schema = _text(253)
_NAME: Schema = _text(253, minLength=1)


def _texts(limit: int) -> Schema:
    return {"type": "object", "additionalProperties": _text(limit), "maxProperties": MAX_ITEMS}


_MANAGED_BY = cel(
    f"!('{names.LABEL_MANAGED_BY}' in self) || self['{names.LABEL_MANAGED_BY}'] == '{names.MANAGER}'",
    f"{names.LABEL_MANAGED_BY} must be {names.MANAGER} or absent: dlr finds its Pods by it",
)


def _container() -> Schema:
    name, path = _text(MAX_PATH, minLength=1), _text(MAX_PATH, minLength=1)
    variable = _object(("name",), name=name, value=_optional(_text(MAX_WORD)), valueFrom=_optional(_FREE))
    resources = _object(limits=_optional(_RESOURCES), requests=_optional(_RESOURCES))
    number = {"type": "integer", "minimum": 0, "maximum": 65_535}
    port = _object(("containerPort",), name=_optional(_SHORT), containerPort=number)
    return _object(
        ("name", "image"),
        name=_text(63, minLength=1),
        image=_text(MAX_PATH, minLength=1),
        command=_optional(_list(_text(MAX_WORD))),
        args=_optional(_list(_text(MAX_WORD))),
        env=_optional(_list(variable)),
        envFrom=_optional(_list(_FREE)),
        resources=_optional(resources),
        ports=_optional(_list(port)),
        volumeMounts=_optional(_list(_object(("name", "mountPath"), name=_NAME, mountPath=path))),
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
        labels=_optional(_texts(63) | rules(_MANAGED_BY)),
        annotations=_optional(_texts(MAX_ANNOTATION)),
        finalizers=_optional(_list(_SHORT)),
    )
    spec = _object(
        ("containers",),
        containers=_list(_container(), minItems=1, maxItems=MAX_CONTAINERS),
        initContainers=_optional(_list(_container(), maxItems=MAX_CONTAINERS)),
        volumes=_optional(_list(_object(("name",), name=_NAME))),
        tolerations=_optional(_list(_FREE)),
        nodeSelector=_optional(_texts(63)),
        affinity=_optional(_affinity()),
        serviceAccountName=_optional(_SHORT),
        serviceAccount=_optional(_SHORT),
        schedulerName=_optional(_SHORT),
        priorityClassName=_optional(_SHORT),
        terminationGracePeriodSeconds=_optional({"type": "integer", "minimum": 0, "maximum": _MAX_INT32}),
    )
    return _object(("spec",), metadata=_optional(metadata), spec=spec)


POD_TEMPLATE_SCHEMA = _template()


PodTemplate = Annotated[
    dict[str, Any], Field(json_schema_extra=POD_TEMPLATE_SCHEMA), AfterValidator(check_depth)
]
"""A Pod template, passed on as it is."""
