"""`status.cluster` of a job with parameter servers, and the rules for such a job (docs/roles.md)."""

from __future__ import annotations

from datetime import datetime
from typing import Annotated, Any

from pydantic import Field, PlainSerializer, PlainValidator, WithJsonSchema

from crds.cluster import MAX_TASKS, MAX_TASKS_TEXT, OFFSETS, PORT_NAME, TASKS_PATTERN
from crds.model import Model, cel
from crds.ranges import as_ranges, from_ranges

MAX_PARAMETER_SERVERS = 256

HIGHEST_FIRST_PORT = 65_400
"""Limit for a type without slots. Each slot takes four ports (`Cluster.port`), and slots that replace others
take as many again."""

_CHIEF, _PS, _WORKER = (f"self.replicaSpecs.{type_}" for type_ in ("chief", "ps", "worker"))
_CONTAINERS = f"{_PS}.template.spec.containers"
_SERVES = f"(has({_PS}) && {_PS}.replicas > 0)"
_HAS_COMMAND = " || ".join(
    f"(has({_CONTAINERS}[0].{words}) && size({_CONTAINERS}[0].{words}) > 0)" for words in ("command", "args")
)


def _port_rule(type_: str) -> dict[str, str]:
    of = f"self.replicaSpecs.{type_}"
    ports = f"{of}.template.spec.containers[0].ports"
    most = f"{HIGHEST_FIRST_PORT} - {2 * len(OFFSETS)} * {of}.replicas"
    return cel(
        f"!{_SERVES} || !has({of}) || size({of}.template.spec.containers) == 0 || !has({ports}) || "
        f"{ports}.all(p, !has(p.name) || p.name != '{PORT_NAME}' || p.containerPort <= {most})",
        f"replicaSpecs.{type_}.template.spec.containers[0].ports: the port {PORT_NAME} must be at most "
        f"{HIGHEST_FIRST_PORT} - {2 * len(OFFSETS)} x replicas: each slot has a port of its own, counted up "
        "from there",
    )


CLUSTER_RULES = (
    cel(
        f"!{_SERVES} || has({_CHIEF}) || has({_WORKER})",
        "replicaSpecs.ps alone trains nothing: add replicaSpecs.chief or replicaSpecs.worker, which use it",
    ),
    *map(_port_rule, OFFSETS),
    cel(
        f"!has({_CHIEF}) || {_SERVES}",
        "replicaSpecs.chief coordinates parameter servers: add replicaSpecs.ps",
    ),
    cel(
        f"!has({_CHIEF}) || {_CHIEF}.replicas == 1",
        "replicaSpecs.chief.replicas must be 1: there is one chief",
    ),
    cel(
        f"!{_SERVES} || {_PS}.replicas <= {MAX_PARAMETER_SERVERS}",
        f"replicaSpecs.ps.replicas must be at most {MAX_PARAMETER_SERVERS}",
    ),
    cel(
        f"{_SERVES} == {_SERVES.replace('self', 'oldSelf')}",
        "a job cannot add its first parameter server or remove its last; make another job",
    ),
    cel(
        f"!{_SERVES} || size({_CONTAINERS}) == 0 || {_HAS_COMMAND}",
        "replicaSpecs.ps.template.spec.containers[0].command must say what a parameter server runs",
    ),
    cel(
        f"!{_SERVES} || !has({_WORKER}) || ({_WORKER}.replicas <= {MAX_TASKS} && {_WORKER}.standby == 0 && "
        f"!has({_WORKER}.memoryCheckpoint))",
        f"replicaSpecs.worker beside ps may have up to {MAX_TASKS} replicas, and neither standby nor "
        "memoryCheckpoint: these need a world, and the job has none",
    ),
    cel(
        f"!{_SERVES} || !self.nodeCheck.enabled",
        "nodeCheck.enabled must be false beside ps: nodes are checked before a world is formed, and the job "
        "has none",
    ),
    cel(
        f"!{_SERVES} || !has(self.elasticPolicy.opportunistic)",
        "elasticPolicy.opportunistic must not be set beside ps: it is a world that grows, and the job has "
        "none",
    ),
)


def _tasks(value: Any) -> list[int]:
    return from_ranges(value) if isinstance(value, str) else list(value)


Tasks = Annotated[
    list[int],
    PlainValidator(_tasks),
    PlainSerializer(as_ranges, return_type=str),
    WithJsonSchema({"type": "string", "pattern": TASKS_PATTERN, "maxLength": MAX_TASKS_TEXT}),
]
"""Slots in the order of their tasks; on the wire, ranges such as `0-3,9`."""


class ClusterStatus(Model):
    """Tasks of a job with parameter servers. Commands find them in TF_CONFIG."""

    version: Annotated[int, Field(ge=1)]
    """Version of the cluster. It rises when the parameter servers or their Pods change, and then the chief's
    command restarts."""
    since: datetime | None = None
    """When this version was published."""
    tasks: Annotated[dict[str, Tasks], Field(max_length=3)]
    """Slots in the order of their tasks, by type: the first is task 0. An evaluator's task is its index."""
    incarnations: Annotated[
        list[Annotated[int, Field(ge=0)]],
        Field(max_length=MAX_PARAMETER_SERVERS, json_schema_extra={"x-kubernetes-list-type": "atomic"}),
    ]
    """Incarnations of the parameter servers, in the order of their tasks; 0 for one whose ElasticWorker was
    deleted after it ran."""
    lost: Tasks = Field(default_factory=list)
    """Slots of parameter servers that do not run."""
