"""Replica groups: parts of a job that train together and fail separately (docs/groups.md)."""

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
    """Number of workers per group. Each group is an ElasticJob of its own, `<name>-group-<index>`."""
    min: Annotated[int, Field(ge=1, le=MAX_GROUPS)] = 1
    """Number of groups below which training waits."""


class GroupPlace(Model):
    """Group that takes part."""

    index: GroupIndex
    round: Ordinal
    """Round of its world."""


class LateGroup(Model):
    """Group that is left out because the others waited for it in vain."""

    index: GroupIndex
    round: Ordinal
    """Round of its world; the group may take part again with its next round."""
    version: Ordinal
    """First version without it. Once its processes have seen this or a later version, it takes part again."""


class TrainingGroups(Model):
    """Groups that train together, and the store where they meet."""

    version: Count = 0
    """Version of the membership: rises with each change; 0 before the first."""
    address: Annotated[str, Field(max_length=253)] = ""
    """Address of the agent with the store where the groups meet: rank 0 of the first group."""
    port: Annotated[int, Field(ge=0, le=65_535)] = 0
    """Port of that store."""
    groups: Annotated[list[GroupPlace], Field(max_length=MAX_GROUPS, json_schema_extra=BY_INDEX)] = Field(
        default_factory=list
    )
    """Groups by index; empty while fewer than the minimum can take part."""


class Membership(TrainingGroups):
    """Decision about which groups train together."""

    late: Annotated[list[LateGroup], Field(max_length=MAX_GROUPS, json_schema_extra=BY_INDEX)] = Field(
        default_factory=list
    )
    """Groups that are left out for now."""


class ReplicaGroupStatus(Model):
    """Progress of a job that is a replica group, from its workers' reports."""

    round: Count = 0
    """Round of its world."""
    ready: bool = False
    """Whether all processes of that round are ready to take part."""
    version: Count = 0
    """Newest version that all of them are in."""
    broken_version: Count = 0
    """Newest version that they gave up without a newer one to go to."""
    left_out_version: Count = 0
    """Newest version without its group that one of them has seen while it waits for a version with it."""
    late_version: Count = 0
    """Version in which one of them has waited for other groups longer than its patience."""
    late_groups: Annotated[list[GroupIndex], Field(max_length=MAX_LATE_GROUPS)] = Field(default_factory=list)
    """Indices of the groups that are waited for."""


class GroupStatus(Model):
    """Replica group, as its job sees it."""

    index: GroupIndex
    uid: Annotated[str, Field(max_length=64)] = ""
    """Uid of the ElasticJob that the controller created for it; no other one is a group of the job."""
    phase: JobPhase | None = None
    round: Count = 0
    version: Count = 0
    """Newest version that it trains in."""
    restarts: Count = 0
    message: Annotated[str, cut(MAX_GROUP_MESSAGE), Field(max_length=MAX_GROUP_MESSAGE)] = ""
    """Why the group does not train."""
