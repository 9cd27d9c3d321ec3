"""Bodies in Kubernetes' protobuf form, which `kubectl create` and a few more commands send.

Only what these commands send is known here: an object of another kind, or one with a field that the table
below lacks, is refused, so that nothing is lost in silence. The form: the four bytes `k8s` and 0, and then a
`runtime.Unknown` with the kind's name and the object
(https://kubernetes.io/docs/reference/using-api/api-concepts/#protobuf-encoding). The numbers are those of
the generated.proto files in k8s.io/api.
"""

from __future__ import annotations

import base64
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from localcluster.resource import JSON

PREFIX = b"k8s\x00"

_TABLE = """
    Unknown: 1 typeMeta TypeMeta, 2 raw raw
    TypeMeta: 1 apiVersion, 2 kind
    ObjectMeta: 1 name, 2 generateName, 3 namespace, 5 uid, 6 resourceVersion, 8 creationTimestamp dropped,
        11 labels {string}, 12 annotations {string}, 17 managedFields dropped

    Namespace: 1 metadata ObjectMeta, 2 spec NamespaceSpec, 3 status dropped
    NamespaceSpec: 1 finalizers [string]
    ConfigMap: 1 metadata ObjectMeta, 2 data {string}, 3 binaryData {bytes}, 4 immutable bool
    Secret: 1 metadata ObjectMeta, 2 data {bytes}, 3 type, 4 stringData {string}, 5 immutable bool
    ServiceAccount: 1 metadata ObjectMeta, 2 secrets [ObjectReference],
        3 imagePullSecrets [LocalObjectReference], 4 automountServiceAccountToken bool
    ObjectReference: 1 kind, 2 namespace, 3 name, 4 uid, 5 apiVersion, 6 resourceVersion, 7 fieldPath
    LocalObjectReference: 1 name

    PriorityClass: 1 metadata ObjectMeta, 2 value int, 3 globalDefault bool, 4 description, 5 preemptionPolicy

    RoleBinding: 1 metadata ObjectMeta, 2 subjects [Subject], 3 roleRef RoleRef
    ClusterRoleBinding: 1 metadata ObjectMeta, 2 subjects [Subject], 3 roleRef RoleRef
    Subject: 1 kind, 2 apiGroup, 3 name, 4 namespace
    RoleRef: 1 apiGroup, 2 kind, 3 name

    DeleteOptions: 1 gracePeriodSeconds int, 2 preconditions Preconditions, 3 orphanDependents bool,
        4 propagationPolicy, 5 dryRun [string]
    Preconditions: 1 uid, 2 resourceVersion
    Eviction: 1 metadata ObjectMeta, 2 deleteOptions DeleteOptions
    TokenRequest: 1 metadata ObjectMeta, 2 spec TokenRequestSpec, 3 status dropped
    TokenRequestSpec: 1 audiences [string], 3 boundObjectRef BoundObjectReference, 4 expirationSeconds int
    BoundObjectReference: 1 kind, 2 apiVersion, 3 name, 4 uid
"""
"""Number, name and type of the fields of each message, by default `string`. Empty strings are left out, since
Kubernetes takes them for absent. Fields of type `dropped` are written by the server alone."""


class ProtobufError(ValueError):
    """The body cannot be read."""


class UnknownMessage(ProtobufError):
    """The body has something that the table lacks."""


@dataclass(frozen=True)
class _Field:
    name: str
    type: str
    is_list: bool
    is_map: bool


def _read_table() -> dict[str, dict[int, _Field]]:
    messages: dict[str, dict[int, _Field]] = {}
    for line in _TABLE.replace(",\n", ",").splitlines():
        message, _, fields = line.strip().partition(": ")
        if not message:
            continue
        messages[message] = {}
        for text in fields.split(","):
            number, name, kind = (*text.split(), "string")[:3]
            messages[message][int(number)] = _Field(name, kind.strip("[]{}"), kind[0] == "[", kind[0] == "{")
    return messages


_MESSAGES = _read_table()


def decode(body: bytes) -> JSON:
    """The object in a body; raises UnknownMessage for what the table does not know, else ProtobufError."""
    if not body.startswith(PREFIX):
        raise ProtobufError("it does not begin with the prefix of Kubernetes' protobuf form")
    envelope = _message("Unknown", body[len(PREFIX) :])
    type_meta = envelope.get("typeMeta", {})
    kind = type_meta.get("kind", "")
    if kind not in _MESSAGES:
        raise UnknownMessage(f"objects of the kind {kind!r} are not known in this form")
    return {**type_meta, **_message(kind, envelope.get("raw", b""))}


def _message(name: str, data: bytes) -> JSON:
    fields = _MESSAGES[name]
    result: JSON = {}
    for number, value in _wire_fields(data):
        field = fields.get(number)
        if field is None:
            if value not in (0, b""):
                raise UnknownMessage(f"field {number} of {name} is not known in this form")
        elif field.is_map:
            entry = dict(_wire_fields(_bytes(value)))
            key = _value("string", entry.get(1, b""))
            result.setdefault(field.name, {})[key] = _value(field.type, entry.get(2, b""))
        elif field.is_list:
            result.setdefault(field.name, []).append(_value(field.type, value))
        elif field.type != "dropped" and not (field.type == "string" and not value):
            result[field.name] = _value(field.type, value)
    return result


def _value(kind: str, value: int | bytes) -> Any:
    match kind:
        case "string":
            return _bytes(value).decode()
        case "bytes":
            return base64.b64encode(_bytes(value)).decode()
        case "raw":
            return _bytes(value)
        case "bool":
            return bool(value)
        case "int":
            number = int(value)
            return number - (1 << 64) if number >> 63 else number
    return _message(kind, _bytes(value))


def _bytes(value: int | bytes) -> bytes:
    if isinstance(value, int):
        raise ProtobufError("a number stands where text is wanted")
    return value


def _wire_fields(data: bytes) -> Iterator[tuple[int, int | bytes]]:
    """Number and value of each field, as https://protobuf.dev/programming-guides/encoding/ has them."""
    position = 0
    while position < len(data):
        tag, position = _varint(data, position)
        number, wire_type = tag >> 3, tag & 7
        if wire_type == 0:
            value, position = _varint(data, position)
            yield number, value
            continue
        if wire_type == 2:
            size, position = _varint(data, position)
        else:
            size = {1: 8, 5: 4}.get(wire_type, len(data) + 1)
        if position + size > len(data):
            raise ProtobufError("it ends in the middle of a field")
        yield number, data[position : position + size]
        position += size


def _varint(data: bytes, position: int) -> tuple[int, int]:
    number = 0
    for index, byte in enumerate(data[position : position + 10]):
        number |= (byte & 0x7F) << (7 * index)
        if not byte & 0x80:
            return number, position + index + 1
    raise ProtobufError("it ends in the middle of a number")
