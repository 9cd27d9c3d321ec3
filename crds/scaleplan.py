"""ScalePlan: a request to change counts, Pods or resources of one job. The spec is DLRover's."""

from __future__ import annotations

from enum import StrEnum
from typing import Annotated

from pydantic import ConfigDict, Field

from crds.model import Conditions, Free, Index, Model, Name, ObjectMeta, Quantity, cel, rules


class ReplicaResourceSpec(Model):
    """Requested count and resources of one replica type."""

    replicas: Annotated[int, Field(ge=0, le=10_000)] | None = None
    """Requested count."""
    resource: Annotated[dict[str, Quantity], Field(max_length=32)] = Field(default_factory=dict)
    """Amounts, such as cpu or memory, for the first container of each Pod of the type."""


class PodMeta(Model):
    """One Pod, as DLRover names it: by `name`, or by `type` and `rankIndex`."""

    name: Name | None = None
    """Name of an ElasticWorker or of its Pod."""
    id: Index | None = None
    """DLRover's; index of the slot if `rankIndex` is absent."""
    type: Annotated[str, Field(max_length=32)] | None = None
    """Replica type; the default is worker."""
    rank_index: Index | None = None
    """Index of the worker's slot."""
    service: Name | None = None
    """DLRover's; accepted and not used."""
    resource: Annotated[Free, Field(max_length=32)] = Field(default_factory=dict)
    """DLRover's, and refused: resources are set by type."""


class ScalePlanSpec(Model):
    """Requested change."""

    model_config = ConfigDict(
        json_schema_extra=rules(
            cel("self.ownerJob == oldSelf.ownerJob", "ownerJob cannot be changed; make another plan")
        )
    )

    owner_job: Annotated[str, Field(min_length=1, max_length=253)]
    """The ElasticJob of this namespace that the plan changes."""
    replica_resource_specs: Annotated[dict[str, ReplicaResourceSpec], Field(max_length=6)] = Field(
        default_factory=dict
    )
    """Counts and resources, by replica type."""
    create_pods: Annotated[
        list[PodMeta], Field(max_length=1_000, json_schema_extra={"x-kubernetes-list-type": "atomic"})
    ] = Field(default_factory=list)
    """Pods to add: one more worker for each entry."""
    remove_pods: Annotated[
        list[PodMeta], Field(max_length=1_000, json_schema_extra={"x-kubernetes-list-type": "atomic"})
    ] = Field(default_factory=list)
    """DLRover's, and refused: request a count instead, or list the Pods in `migratePods`."""
    migrate_pods: Annotated[
        list[PodMeta], Field(max_length=1_000, json_schema_extra={"x-kubernetes-list-type": "atomic"})
    ] = Field(default_factory=list)
    """Workers to replace; the new one is ready before the old one is removed."""
    ps_hosts: Annotated[
        list[Name], Field(max_length=1_000, json_schema_extra={"x-kubernetes-list-type": "atomic"})
    ] = Field(default_factory=list)
    """DLRover's; accepted and not used."""


class ScalePlanPhase(StrEnum):
    APPLIED = "Applied"
    SUPERSEDED = "Superseded"
    REFUSED = "Refused"


class ScalePlanStatus(Model):
    """Result of the request."""

    phase: ScalePlanPhase | None = None
    """Unset until the job's reconciler has judged the plan; final once it is set."""
    conditions: Conditions = Field(default_factory=list)
    """Condition `Applied`: whether the plan was written into the job, and why not; final."""


class ScalePlan(Model):
    """A change of an ElasticJob's counts, Pods or resources."""

    metadata: ObjectMeta
    spec: ScalePlanSpec
    status: ScalePlanStatus = Field(default_factory=ScalePlanStatus)
