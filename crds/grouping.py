"""Relations between jobs and their replica groups, read from plain objects with the standard library."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from crds import names

MAX_GROUPS = 1_000
LEAST_PATIENCE_SECONDS = 10.0
MOST_PATIENCE_SECONDS = 3_600.0
FIRST_STEP_PATIENCE_SECONDS = 600.0
"""Patience before the first step, which may have to compile."""
PATIENCE_STEPS = 3
"""Number of usual step durations for which the other groups wait for a late one."""


@dataclass(frozen=True)
class GroupOf:
    """Job that a group belongs to, by the group's controlling owner and name; labels are only for people."""

    name: str
    uid: str
    index: int

    @property
    def labels(self) -> dict[str, str]:
        """Labels of all objects of the group."""
        return {names.LABEL_GROUPED_JOB: self.name, names.LABEL_GROUP_INDEX: str(self.index)}


def owner_of_group(metadata: Mapping[str, Any]) -> GroupOf | None:
    """Return the job that an ElasticJob with these metadata is a replica group of; None for any other."""
    for owner in metadata.get("ownerReferences") or ():
        is_job = owner.get("kind") == "ElasticJob" and owner.get("apiVersion") == names.API_VERSION
        if owner.get("controller") and is_job:
            index = index_of(owner["name"], metadata["name"])
            return None if index is None else GroupOf(owner["name"], owner["uid"], index)
    return None


def index_of(job: str, name: str) -> int | None:
    """Return the index of the group with this name; None if it is not a group's name.

    Only the name is safe from edits.
    """
    digits = name.removeprefix(group_name(job, 0)[:-1])
    if not (digits.isascii() and digits.isdecimal() and len(digits) <= len(str(MAX_GROUPS - 1))):
        return None
    return int(digits) if name == group_name(job, int(digits)) else None


def worker_number(group: int, index: int) -> int:
    """Return the number of a worker among all groups, which identifies it in leases of shards.

    Args:
        group: index of its group.
        index: index of the worker in its group.
    """
    return index * MAX_GROUPS + group


def is_grouped(job: Mapping[str, Any]) -> bool:
    """Return whether an ElasticJob is divided into groups, and so has no workers itself."""
    return bool((job["spec"].get("elasticPolicy") or {}).get("replicaGroups"))


def group_count(job: Mapping[str, Any]) -> int:
    """Return the number of groups of an ElasticJob; 0 for one without any."""
    groups = (job["spec"].get("elasticPolicy") or {}).get("replicaGroups")
    worker = job["spec"]["replicaSpecs"].get(names.WORKER) or {}
    return int(worker.get("replicas", 0)) // int(groups["workers"]) if groups else 0


def patience_seconds(step_seconds: float | None) -> float:
    """Return how long groups wait for a late one before they go on without it.

    Args:
        step_seconds: usual duration of a step; None before the first.
    """
    if step_seconds is None:
        return FIRST_STEP_PATIENCE_SECONDS
    return min(max(PATIENCE_STEPS * step_seconds, LEAST_PATIENCE_SECONDS), MOST_PATIENCE_SECONDS)


def group_name(job: str, index: int) -> str:
    """Return the name of a group's ElasticJob."""
    return f"{job}-group-{index}"
