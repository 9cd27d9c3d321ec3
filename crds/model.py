"""Base of the resource models: camelCase on the wire, docstrings as field descriptions."""

from __future__ import annotations

from datetime import datetime
from enum import StrEnum
from typing import Annotated, Any, TypeVar

import orjson
from pydantic import (
    AfterValidator,
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    PlainSerializer,
    PlainValidator,
    ValidationError,
    ValidationInfo,
    WithJsonSchema,
)
from pydantic.alias_generators import to_camel

from crds import intervals, ranges
from crds.texts import shortened
from crds.wire import MAX_INTEGER, MAX_SECONDS


class Model(BaseModel):
    """Part of a custom resource, as the API server stores it.

    Unknown fields are ignored: the API server has pruned or refused them already, and a newer CRD's fields
    must not stop an older controller. The docstring under a field becomes its `kubectl explain` text.
    """

    model_config = ConfigDict(
        alias_generator=to_camel,
        populate_by_name=True,
        use_attribute_docstrings=True,
        extra="ignore",
        frozen=True,
    )

    def to_wire(self) -> dict[str, Any]:
        """The object as JSON-ready data, without the fields that are not set."""
        return self.model_dump(mode="json", by_alias=True, exclude_none=True)


M = TypeVar("M", bound=Model)
T = TypeVar("T")


def first_fault(error: ValidationError) -> str:
    """The path of the first field that cannot be read, with the reason."""
    first = error.errors(include_url=False, include_context=False, include_input=False)[0]
    path = ".".join(map(str, first["loc"]))
    return f"{path}: {own_reason(first['msg'])}"


def own_reason(message: str) -> str:
    """Return pydantic's message for a ValueError as the validator that raised it wrote it."""
    return message.replace("Value error, ", "", 1)


WRITTEN = {"written": True}
"""Validation context for a value that is about to be written."""


def cut(limit: int) -> BeforeValidator:
    """Shorten a text to `limit` bytes of JSON (`crds.texts`), or a list to its last `limit` entries.

    Input may be longer, since an earlier version had wider limits; output may not, see
    `reconcilers/observed/status_patch.py`.
    """

    def first(value: Any, info: ValidationInfo) -> Any:
        if info.context is WRITTEN or not isinstance(value, str | list):
            return value
        return shortened(value, limit) if isinstance(value, str) else value[-limit:]

    return BeforeValidator(first)


def cel(rule: str, message: str) -> dict[str, str]:
    """One `x-kubernetes-validations` entry.

    https://kubernetes.io/docs/tasks/extend-kubernetes/custom-resources/custom-resource-definitions/#validation-rules
    """
    return {"rule": rule, "message": message}


def rules(*entries: dict[str, str], **more: Any) -> dict[str, Any]:
    """The `json_schema_extra` of a field or model that carries CEL rules (and other schema keywords)."""
    return {"x-kubernetes-validations": list(entries), **more}


def check_depth(value: T) -> T:
    """Refuse a value nested too deeply to be copied or written; Kubernetes stores 10,000 levels."""
    try:
        orjson.dumps(value)
    except TypeError as error:
        raise ValueError("is nested too deeply, or holds a number beyond 64 bits") from error
    return value


Free = Annotated[
    dict[str, Any],
    AfterValidator(check_depth),
    Field(json_schema_extra={"x-kubernetes-preserve-unknown-fields": True}),
]
"""An object with arbitrary fields."""

Name = Annotated[str, Field(max_length=253)]
Count = Annotated[int, Field(ge=0, le=MAX_INTEGER)]
Ordinal = Annotated[int, Field(ge=1, le=MAX_INTEGER)]
Seconds = Annotated[float, Field(ge=0, le=MAX_SECONDS)]
MAX_TIME_SECONDS = (1 << 31) - 1
"""The longest duration in a spec, in seconds, as in a Job of Kubernetes."""

Index = Annotated[int, Field(ge=0, le=ranges.MAX_INDEX)]


def _indices(value: Any) -> list[int]:
    """Read the text of the wire, or the list that Python has."""
    if isinstance(value, str):
        return ranges.from_text(value)
    if not isinstance(value, list | tuple) or not {*map(type, value)} <= {int}:
        raise ValueError("a set of indices is a text such as `0-41,43`")
    ranges.check(value)
    return list(value)


Indices = Annotated[
    list[int],
    PlainValidator(_indices),
    PlainSerializer(ranges.to_text, return_type=str),
    WithJsonSchema({"type": "string", "pattern": intervals.PATTERN, "maxLength": ranges.MAX_CHARACTERS}),
]
"""Ascending indices. On the wire, ranges such as `0-41,43-9998`; packed if they are too scattered."""


def _members(value: Any) -> list[int]:
    """Read the text of the wire, or the list that Python has."""
    if isinstance(value, str):
        return ranges.ranked_from_text(value)
    if not isinstance(value, list | tuple) or not {*map(type, value)} <= {int}:
        raise ValueError("members are a text such as `0-41,43`")
    ranges.check_ranked(value)
    return list(value)


Members = Annotated[
    list[int],
    PlainValidator(_members),
    PlainSerializer(ranges.ranked_to_text, return_type=str),
    WithJsonSchema({"type": "string", "pattern": ranges.RANKED_PATTERN, "maxLength": ranges.MAX_CHARACTERS}),
]
"""Indices in rank order. On the wire, ranges such as `4-7,0-3`; packed, if they are too scattered."""
MAX_QUANTITY = 64
"""Characters of an amount such as 1.5Gi."""


def _short(quantity: str | int) -> str | int:
    if isinstance(quantity, str) and len(quantity) > MAX_QUANTITY:
        raise ValueError(f"must have {MAX_QUANTITY} characters at most")
    return quantity


Quantity = Annotated[
    str | int,
    AfterValidator(_short),
    Field(json_schema_extra={"x-kubernetes-int-or-string": True, "maxLength": MAX_QUANTITY}),
]


class ConditionStatus(StrEnum):
    TRUE = "True"
    FALSE = "False"
    UNKNOWN = "Unknown"


MAX_CONDITION_MESSAGE = 512
"""Bytes of JSON. Long quotations, say of a scheduler, are cut; Events have the whole text."""


class ConditionData(Model):
    """Facts behind a condition's message. The controller compares these, never the message."""

    controller: Annotated[str, Field(max_length=32)] | None = None
    """Name of the controller that wrote the condition, where several may."""
    worker: Annotated[str, Field(max_length=253)] | None = None
    """Name of the ElasticWorker that the message is about; of several, the first."""
    node: Annotated[str, Field(max_length=253)] | None = None
    """Name of that worker's node."""
    check: Annotated[str, Field(max_length=253)] | None = None
    """Name of the NodeCheck that the message is about."""
    count: Annotated[int, Field(ge=0)] | None = None
    """Number of Pods, workers or nodes that the message is about."""
    round: Annotated[int, Field(ge=0)] | None = None
    """Round of the job's world in which it happened."""
    step: Annotated[int, Field(ge=0)] | None = None
    """Training step at which it happened or began."""
    seconds_per_step: Annotated[float, Field(ge=0)] | None = None
    """Duration of a training step, in seconds."""
    limit_seconds: Annotated[float, Field(ge=0)] | None = None
    """Time limit that the message names, in seconds."""


class Condition(Model):
    """A metav1.Condition, so that `kubectl wait --for=condition=…` works."""

    type: Annotated[str, Field(max_length=316)]
    status: ConditionStatus
    reason: Annotated[str, cut(64), Field(max_length=64)]
    message: Annotated[str, cut(MAX_CONDITION_MESSAGE), Field(max_length=MAX_CONDITION_MESSAGE)] = ""
    last_transition_time: datetime
    observed_generation: int | None = None
    data: ConditionData | None = None
    """Facts behind the message."""


Conditions = Annotated[
    list[Condition],
    Field(
        max_length=32,
        json_schema_extra={"x-kubernetes-list-type": "map", "x-kubernetes-list-map-keys": ["type"]},
    ),
]


class ResourceRequirements(Model):
    """Compute resources of the training container, as in a Pod."""

    limits: Annotated[dict[str, Quantity], Field(max_length=32)] = Field(default_factory=dict)
    requests: Annotated[dict[str, Quantity], Field(max_length=32)] = Field(default_factory=dict)


class ObjectMeta(Model):
    """The metadata that the reconcilers read."""

    name: str
    generate_name: str = ""
    namespace: str = ""
    uid: str = ""
    generation: int = 0
    resource_version: str = ""
    creation_timestamp: datetime | None = None
    deletion_timestamp: datetime | None = None
    finalizers: list[str] = Field(default_factory=list)
    labels: dict[str, str] = Field(default_factory=dict)
    annotations: dict[str, str] = Field(default_factory=dict)
