"""ScalePlan: a change of counts, Pods or resources asked of one job. DLRover's spec."""

from __future__ import annotations

from enum import StrEnum
from typing import Annotated

from pydantic import ConfigDict, Field

from crds.model import Conditions, Free, Index, Model, Name, ObjectMeta, Quantity, cel, rules


class ReplicaResourceSpec(Model):
    """The count and the resources asked for one replica type."""

    replicas: Annotated[int, Field(ge=0, le=10_000)] | None = None
    """The count that is asked for."""
    resource: Annotated[dict[str, Quantity], Field(max_length=32)] = Field(default_factory=dict)
    """Amounts, such as cpu or memory, for the first container of each Pod of the type."""


class PodMeta(Model):
    """One Pod, as DLRover names it: by `name`, or by `type` and `rankIndex`."""

    name: Name | None = None
    """The name of an ElasticWorker, or of its Pod."""
    id: Index | None = None
    """DLRover's; the index of the slot, where `rankIndex` is absent."""
    type: Annotated[str, Field(max_length=32)] | None = None
    """The replica type; worker is the default."""
    rank_index: Index | None = None
    """The index of the worker's slot."""
    service: Name | None = None
    """DLRover's; accepted and not used."""
    resource: Annotated[Free, Field(max_length=32)] = Field(default_factory=dict)
    """DLRover's, and refused: resources are those of a type."""


class ScalePlanSpec(Model):
    """The change that is asked for."""

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
    """One more worker for each entry."""
    remove_pods: Annotated[
        list[PodMeta], Field(max_length=1_000, json_schema_extra={"x-kubernetes-list-type": "atomic"})
    ] = Field(default_factory=list)
    """DLRover's, and refused: ask for a count, or for other Pods in `migratePods`."""
    migrate_pods: Annotated[
        list[PodMeta], Field(max_length=1_000, json_schema_extra={"x-kubernetes-list-type": "atomic"})
    ] = Field(default_factory=list)
    """Workers that are replaced; the new one is ready before the old one goes."""
    ps_hosts: Annotated[
        list[Name], Field(max_length=1_000, json_schema_extra={"x-kubernetes-list-type": "atomic"})
    ] = Field(default_factory=list)
    """DLRover's; accepted and not used."""


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
