"""ScalePlan: a change of counts, Pods or resources asked of one job. DLRover's spec."""

from __future__ import annotations

from enum import StrEnum
from typing import Annotated

from pydantic import ConfigDict, Field

from crds.model import Conditions, Free, Index, Model, Name, ObjectMeta, Quantity, cel, rules


class ReplicaResourceSpec(Model):
    """The count and the resources asked for one replica type."""

    replicas: Annotated[int, Field(ge=0, le=10_000)] | None = None
    resource: Annotated[dict[str, Quantity], Field(max_length=32)] = Field(default_factory=dict)


class PodMeta(Model):
    """One Pod, as DLRover names it."""

    name: Name | None = None
    id: Index | None = None
    type: Annotated[str, Field(max_length=32)] | None = None
    rank_index: Index | None = None
    service: Name | None = None
    resource: Annotated[Free, Field(max_length=32)] = Field(default_factory=dict)


class ScalePlanSpec(Model):
    """The change that is asked for."""

    model_config = ConfigDict(
        json_schema_extra=rules(
            cel("self.ownerJob == oldSelf.ownerJob", "ownerJob cannot be changed; make another plan")
        )
    )

    owner_job: Annotated[str, Field(min_length=1, max_length=253)]
    replica_resource_specs: Annotated[dict[str, ReplicaResourceSpec], Field(max_length=6)] = Field(
        default_factory=dict
    )
    create_pods: Annotated[
        list[PodMeta], Field(max_length=1_000, json_schema_extra={"x-kubernetes-list-type": "atomic"})
    ] = Field(default_factory=list)
    remove_pods: Annotated[
        list[PodMeta], Field(max_length=1_000, json_schema_extra={"x-kubernetes-list-type": "atomic"})
    ] = Field(default_factory=list)
    migrate_pods: Annotated[
        list[PodMeta], Field(max_length=1_000, json_schema_extra={"x-kubernetes-list-type": "atomic"})
    ] = Field(default_factory=list)
    ps_hosts: Annotated[
        list[Name], Field(max_length=1_000, json_schema_extra={"x-kubernetes-list-type": "atomic"})
    ] = Field(default_factory=list)


class ScalePlanPhase(StrEnum):
    APPLIED = "Applied"
    SUPERSEDED = "Superseded"
    REFUSED = "Refused"


class ScalePlanStatus(Model):
    """What became of the change."""

    phase: ScalePlanPhase | None = None
    """Unset until the job's reconciler has judged the plan; final once it is set."""
    conditions: Conditions = Field(default_factory=list)
    """`Applied`: whether the plan is part of what the job wants, and why not."""


class ScalePlan(Model):
    """A change of an ElasticJob's counts, Pods or resources."""

    metadata: ObjectMeta
    spec: ScalePlanSpec
    status: ScalePlanStatus = Field(default_factory=ScalePlanStatus)
