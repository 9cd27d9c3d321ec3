"""The objects the tests talk about, one line each; `Widget` is a kind of the suite's own."""

from __future__ import annotations

import copy
import os
import secrets
from typing import Any

from controller.resources import CONFIGMAPS, LEASES, PODS, SERVICEACCOUNTS, Resource

from .resources import BUDGETS, WG, WIDGETS

JSON = dict[str, Any]

IMAGE = os.environ.get("DLR_CONFORMANCE_IMAGE", "busybox:stable")
"""Of all containers: it must have `/bin/sh` and `sleep`. Where nodes reach no registry, one that they have."""


def unique(prefix: str) -> str:
    return f"{prefix}-{secrets.token_hex(4)}"


def manifest(resource: Resource, namespace: str | None, name: str, **fields: Any) -> JSON:
    metadata: JSON = {"name": name}
    if namespace:
        metadata["namespace"] = namespace
    for key in ("labels", "annotations", "finalizers", "ownerReferences"):
        if key in fields:
            metadata[key] = fields.pop(key)
    return {"apiVersion": resource.api_version, "kind": resource.kind, "metadata": metadata, **fields}


def widget(namespace: str, name: str, spec: JSON | None = None, **metadata: Any) -> JSON:
    return manifest(WIDGETS, namespace, name, spec={"title": "example", **(spec or {})}, **metadata)


def configmap(namespace: str, name: str, data: dict[str, str] | None = None, **metadata: Any) -> JSON:
    return manifest(CONFIGMAPS, namespace, name, data=data or {}, **metadata)


def lease(namespace: str, name: str, **spec: Any) -> JSON:
    return manifest(LEASES, namespace, name, spec=spec)


def serviceaccount(namespace: str, name: str) -> JSON:
    return manifest(SERVICEACCOUNTS, namespace, name)


def budget(namespace: str, name: str, **spec: Any) -> JSON:
    """A PodDisruptionBudget of the Pods with the label `app` set to its name."""
    return manifest(BUDGETS, namespace, name, spec={"selector": {"matchLabels": {"app": name}}, **spec})


def pod(namespace: str, name: str, *containers: JSON, **spec: Any) -> JSON:
    """A Pod with one container that sleeps, unless told otherwise."""
    metadata = {key: spec.pop(key) for key in ("labels", "ownerReferences", "finalizers") if key in spec}
    return manifest(
        PODS, namespace, name, spec={"containers": list(containers) or [container()], **spec}, **metadata
    )


def unschedulable_pod(namespace: str, name: str, *containers: JSON, **spec: Any) -> JSON:
    """A Pod that stays Pending wherever it is created, so that only the API server has a say in it."""
    return pod(namespace, name, *containers, nodeSelector={"conformance.dlr.dev/nowhere": "true"}, **spec)


def container(name: str = "main", script: str = "sleep 3600", **fields: Any) -> JSON:
    return {"name": name, "image": IMAGE, "command": ["/bin/sh", "-c", script], **fields}


def owned_by(owner: JSON, *, controller: bool = True, block: bool = True) -> JSON:
    return {
        "apiVersion": owner["apiVersion"],
        "kind": owner["kind"],
        "name": owner["metadata"]["name"],
        "uid": owner["metadata"]["uid"],
        "controller": controller,
        "blockOwnerDeletion": block,
    }


def crd(plural: str, kind: str, schema: JSON, *, scope: str = "Namespaced", **version: Any) -> JSON:
    """A CustomResourceDefinition in the suite's group."""
    return {
        "apiVersion": "apiextensions.k8s.io/v1",
        "kind": "CustomResourceDefinition",
        "metadata": {"name": f"{plural}.{WIDGETS.group}"},
        "spec": {
            "group": WIDGETS.group,
            "scope": scope,
            "names": {"plural": plural, "singular": kind.lower(), "kind": kind},
            "versions": [
                {
                    "name": WIDGETS.version,
                    "served": True,
                    "storage": True,
                    "schema": {"openAPIV3Schema": schema},
                    **version,
                }
            ],
        },
    }


_TEXT: JSON = {"type": "string", "maxLength": 64}

_PART: JSON = {
    "type": "object",
    "required": ["name"],
    "properties": {"name": _TEXT, "count": {"type": "integer", "default": 1}},
}
_SPEC: JSON = {
    "type": "object",
    "required": ["title"],
    "properties": {
        "title": _TEXT,
        "size": {
            "type": "integer",
            "description": "How big it is, in centimetres.",
            "minimum": 1,
            "default": 3,
        },
        "color": {"type": "string", "enum": ["red", "green", "blue"], "default": "red"},
        "replicas": {"type": "integer", "format": "int32", "minimum": 0, "default": 1},
        "note": {**_TEXT, "nullable": True},
        "extra": {"type": "object", "x-kubernetes-preserve-unknown-fields": True},
        "parts": {
            "type": "array",
            "items": _PART,
            "x-kubernetes-list-type": "map",
            "x-kubernetes-list-map-keys": ["name"],
        },
        "attributes": {"type": "object", "additionalProperties": _TEXT},
        "max": {"type": "integer"},
    },
    "x-kubernetes-validations": [
        {"rule": "!has(self.max) || self.replicas <= self.max", "message": "replicas must not exceed max"}
    ],
}
_CONDITION: JSON = {
    "type": "object",
    "required": ["type", "status"],
    "properties": {key: _TEXT for key in ("type", "status", "reason", "message")},
}
_STATUS: JSON = {
    "type": "object",
    "properties": {
        "phase": _TEXT,
        "replicas": {"type": "integer", "format": "int32"},
        "selector": _TEXT,
        "conditions": {
            "type": "array",
            "items": _CONDITION,
            "x-kubernetes-list-type": "map",
            "x-kubernetes-list-map-keys": ["type"],
        },
    },
}
_COLUMNS: list[JSON] = [
    {"name": "Size", "type": "integer", "jsonPath": ".spec.size", "description": "How big it is."},
    {"name": "Color", "type": "string", "jsonPath": ".spec.color"},
    {"name": "Phase", "type": "string", "jsonPath": ".status.phase"},
    {"name": "Ready", "type": "string", "jsonPath": '.status.conditions[?(@.type=="Ready")].status'},
    {"name": "Note", "type": "string", "jsonPath": ".spec.note", "priority": 1},
    {"name": "Age", "type": "date", "jsonPath": ".metadata.creationTimestamp"},
]


def widget_crd() -> JSON:
    schema = {"type": "object", "required": ["spec"], "properties": {"spec": _SPEC, "status": _STATUS}}
    definition = crd(
        WIDGETS.plural,
        WIDGETS.kind,
        copy.deepcopy(schema),
        additionalPrinterColumns=_COLUMNS,
        selectableFields=[{"jsonPath": ".spec.color"}],
        subresources={
            "status": {},
            "scale": {
                "specReplicasPath": ".spec.replicas",
                "statusReplicasPath": ".status.replicas",
                "labelSelectorPath": ".status.selector",
            },
        },
    )
    definition["spec"]["names"]["shortNames"] = [WG]
    return definition
