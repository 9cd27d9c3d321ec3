"""Messages and methods of NVSentinel's and NVRx's protocols, as far as they are used.

They are built at import time, so that no generated code is kept; receivers skip unknown fields.
"""

from __future__ import annotations

from collections.abc import Mapping
from enum import IntEnum
from typing import Any

from google.protobuf import timestamp_pb2
from google.protobuf.descriptor_pb2 import FieldDescriptorProto, FileDescriptorProto
from google.protobuf.descriptor_pool import DescriptorPool
from google.protobuf.message_factory import GetMessageClass

HEALTH_EVENT_OCCURRED = "/datamodels.PlatformConnector/HealthEventOccurredV1"
"""NVSentinel's method: `HealthEvents` in, `google.protobuf.Empty` out."""
HEALTH_CHECK_SERVICE, RUN_HEALTH_CHECK = "nvhcd.HealthCheckService", "RunHealthCheck"
"""NVRx's service and its method: `HealthCheckRequest` in, `HealthCheckResponse` out."""
PROTOCOL_VERSION = 1


class RecommendedAction(IntEnum):
    """Action for NVSentinel to take on a node."""

    NONE = 0
    COMPONENT_RESET = 2
    CONTACT_SUPPORT = 5
    RESTART_VM = 15
    REPLACE_VM = 25


class ProcessingStrategy(IntEnum):
    """Whether NVSentinel acts on an event."""

    EXECUTE_REMEDIATION = 1
    STORE_ONLY = 2


Fields = Mapping[str, tuple[int, str]]
"""Number and type of each field; `*` marks repeated ones."""

NVSENTINEL: Mapping[str, Fields] = {
    "Entity": {"entityType": (1, "string"), "entityValue": (2, "string")},
    "HealthEvent": {
        "version": (1, "uint32"),
        "agent": (2, "string"),
        "componentClass": (3, "string"),
        "checkName": (4, "string"),
        "isFatal": (5, "bool"),
        "isHealthy": (6, "bool"),
        "message": (7, "string"),
        "recommendedAction": (8, "int32"),
        "errorCode": (9, "string*"),
        "entitiesImpacted": (10, ".datamodels.Entity*"),
        "generatedTimestamp": (12, ".google.protobuf.Timestamp"),
        "nodeName": (13, "string"),
        "processingStrategy": (16, "int32"),
    },
    "HealthEvents": {"version": (1, "uint32"), "events": (2, ".datamodels.HealthEvent*")},
}
"""NVSentinel's messages. Enums are declared as numbers, which are the same on the wire."""
NVRX: Mapping[str, Fields] = {
    "HealthCheckRequest": {"args": (1, "string*")},
    "HealthCheckResponse": {
        "success": (1, "bool"),
        "exit_code": (2, "int32"),
        "output": (3, "string"),
        "error": (4, "string"),
    },
}


def _add(pool: DescriptorPool, package: str, messages: Mapping[str, Fields]) -> None:
    needed = [timestamp_pb2.DESCRIPTOR.name]
    file = FileDescriptorProto(
        name=f"dlr/{package}.proto", package=package, syntax="proto3", dependency=needed
    )
    for name, fields in messages.items():
        message = file.message_type.add(name=name)
        for field, (number, text) in fields.items():
            kind = text.removesuffix("*")
            label = "LABEL_REPEATED" if text.endswith("*") else "LABEL_OPTIONAL"
            added = message.field.add(name=field, number=number)
            added.label = FieldDescriptorProto.Label.Value(label)
            if kind.startswith("."):
                added.type, added.type_name = FieldDescriptorProto.TYPE_MESSAGE, kind
            else:
                added.type = FieldDescriptorProto.Type.Value(f"TYPE_{kind.upper()}")
    pool.AddSerializedFile(file.SerializeToString())


def _classes() -> dict[str, Any]:
    pool = DescriptorPool()
    pool.AddSerializedFile(timestamp_pb2.DESCRIPTOR.serialized_pb)
    found = {}
    for package, messages in (("datamodels", NVSENTINEL), ("nvhcd", NVRX)):
        _add(pool, package, messages)
        for name in messages:
            found[name] = GetMessageClass(pool.FindMessageTypeByName(f"{package}.{name}"))
    return found


_CLASSES = _classes()
HealthEvents, HealthCheckRequest, HealthCheckResponse = (
    _CLASSES[name] for name in ("HealthEvents", "HealthCheckRequest", "HealthCheckResponse")
)
