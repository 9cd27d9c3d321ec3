"""Replica groups: a job in parts that train together and fail alone (docs/groups.md)."""

from __future__ import annotations

from typing import Annotated

from pydantic import Field

from crds.agent_report import MAX_LATE_GROUPS
from crds.grouping import MAX_GROUPS
from crds.model import Count, Model, Ordinal, cut
from crds.phases import JobPhase

MAX_GROUP_MESSAGE = 128

GroupIndex = Annotated[int, Field(ge=0, lt=MAX_GROUPS)]
BY_INDEX = {"x-kubernetes-list-type": "map", "x-kubernetes-list-map-keys": ["index"]}


class ReplicaGroups(Model):
    """Division of the workers into groups."""

    workers: Annotated[int, Field(ge=1, le=10_000)]
    """Workers of each group. Each group is an ElasticJob of its own, `<name>-group-<index>`."""
    min: Annotated[int, Field(ge=1, le=MAX_GROUPS)] = 1
    """Number of groups below which training waits."""


class GroupPlace(Model):
    """A group that takes part."""

    index: GroupIndex
    round: Ordinal
    """Round of its world."""


class LateGroup(Model):
    """A group that is left out because the others waited for it in vain."""

    index: GroupIndex
    round: Ordinal
    """Round of its world: the group's next one may take part again."""
    version: Ordinal
    """The first version without it: once its processes have seen that or a later one, it takes part again."""


class TrainingGroups(Model):
    """The groups that train together, and where they meet."""

    version: Count = 0
    """Rises with each change; 0 before the first."""
    address: Annotated[str, Field(max_length=253)] = ""
    """Address of the agent that keeps the store through which they meet: the first group's rank 0."""
    port: Annotated[int, Field(ge=0, le=65_535)] = 0
    """Its port."""
    groups: Annotated[list[GroupPlace], Field(max_length=MAX_GROUPS, json_schema_extra=BY_INDEX)] = Field(
        default_factory=list
    )
    """The groups in the order of their indices; none while fewer than the minimum could take part."""


class Membership(TrainingGroups):
    """Decision which groups train together."""

    late: Annotated[list[LateGroup], Field(max_length=MAX_GROUPS, json_schema_extra=BY_INDEX)] = Field(
        default_factory=list
    )
    """Groups that are left out until they are back."""


class ReplicaGroupStatus(Model):
    """How far a job that is a replica group is, by its workers' reports."""

    round: Count = 0
    """Round of its world."""
    ready: bool = False
    """Whether all processes of that round are ready to take part."""
    version: Count = 0
    """The newest version that all of them are in."""
    broken_version: Count = 0
    """The newest version that they gave up when there was no newer one."""
    left_out_version: Count = 0
    """The newest version that one of them has seen without its group while it waits for one with it."""
    late_version: Count = 0
    """The version in which one of them waits for other groups for longer than its patience."""
    late_groups: Annotated[list[GroupIndex], Field(max_length=MAX_LATE_GROUPS)] = Field(default_factory=list)
    """Indices of the groups that it waits for."""


class GroupStatus(Model):
    """One group."""

    index: GroupIndex
    uid: Annotated[str, Field(max_length=64)] = ""
    """The uid of the ElasticJob that the controller made for it. No other is a group of the job."""
    phase: JobPhase | None = None
    round: Count = 0
    version: Count = 0
    """The newest version that it trains in."""
    restarts: Count = 0
    message: Annotated[str, cut(MAX_GROUP_MESSAGE), Field(max_length=MAX_GROUP_MESSAGE)] = ""
    """Why it does not train."""
