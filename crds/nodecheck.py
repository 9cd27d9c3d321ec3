"""NodeCheck: the two-round pairwise check, of a job's workers or of cluster nodes (design §6)."""

from __future__ import annotations

from datetime import datetime
from enum import StrEnum
from typing import Annotated

from pydantic import ConfigDict, Field

from crds.model import Conditions, Model, Name, ObjectMeta, cel, rules

NodeNames = Annotated[
    list[Name], Field(max_length=5_000, json_schema_extra={"x-kubernetes-list-type": "atomic"})
]

NodeSelector = Annotated[dict[str, Annotated[str, Field(max_length=63)]], Field(max_length=32)]


class NodeCheckSpec(Model):
    """Which nodes to check."""

    model_config = ConfigDict(
        json_schema_extra=rules(
            cel(
                "[has(self.jobName), has(self.nodes), has(self.nodeSelector)].filter(x, x).size() == 1",
                "name what to check by exactly one of jobName, nodes and nodeSelector",
            )
        )
    )

    job_name: Name | None = None
    nodes: Annotated[NodeNames, Field(min_length=1)] | None = None
    node_selector: NodeSelector | None = None
    cordon: bool = True
    timeout_seconds: Annotated[int, Field(ge=10, le=3_600)] = 300


class NodeCheckPhase(StrEnum):
    PENDING = "Pending"
    RUNNING = "Running"
    SUCCEEDED = "Succeeded"
    FAILED = "Failed"


class CheckGroup(Model):
    """Nodes that test each other in one round, in rank order."""

    members: Annotated[
        list[Name], Field(min_length=1, max_length=64, json_schema_extra={"x-kubernetes-list-type": "atomic"})
    ]


class CheckResult(Model):
    """What one node measured in one round. Compute and network times are never summed."""

    round: Annotated[int, Field(ge=1)]
    passed: bool
    compute_tflops: float | None = None
    network_gbps: float | None = None
    message: Annotated[str, Field(max_length=1_024)] = ""


class NodeResult(Model):
    """All that one node measured."""

    node: Name
    results: Annotated[
        list[CheckResult], Field(max_length=16, json_schema_extra={"x-kubernetes-list-type": "atomic"})
    ] = Field(default_factory=list)


class FaultyLink(Model):
    """Two nodes that are well, and cannot work with each other."""

    a: Name
    b: Name


class NodeCheckStatus(Model):
    """The current round, its results, and the verdicts."""

    observed_generation: int | None = None
    phase: NodeCheckPhase | None = None
    round: Annotated[int, Field(ge=0)] | None = None
    groups: Annotated[
        list[CheckGroup], Field(max_length=5_000, json_schema_extra={"x-kubernetes-list-type": "atomic"})
    ] = Field(default_factory=list)
    """The desired assignment of the current round."""
    node_results: Annotated[
        list[NodeResult],
        Field(
            max_length=5_000,
            json_schema_extra={"x-kubernetes-list-type": "map", "x-kubernetes-list-map-keys": ["node"]},
        ),
    ] = Field(default_factory=list)
    faulty_nodes: NodeNames = Field(default_factory=list)
    stragglers: NodeNames = Field(default_factory=list)
    faulty_links: Annotated[
        list[FaultyLink], Field(max_length=1_000, json_schema_extra={"x-kubernetes-list-type": "atomic"})
    ] = Field(default_factory=list)
    inconclusive: NodeNames = Field(default_factory=list)
    conditions: Conditions = Field(default_factory=list)
    start_time: datetime | None = None
    completion_time: datetime | None = None


class NodeCheck(Model):
    """A pairwise health check of nodes."""

    metadata: ObjectMeta
    spec: NodeCheckSpec
    status: NodeCheckStatus = Field(default_factory=NodeCheckStatus)
