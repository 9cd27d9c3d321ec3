"""Which ElasticJob is a replica group of which: read from plain objects, with the standard library alone."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from crds import names


@dataclass(frozen=True)
class GroupOf:
    """The job that a group belongs to, by the group's controlling owner: its labels are for people."""

    name: str
    uid: str
    index: int


def owner_of_group(metadata: Mapping[str, Any]) -> GroupOf | None:
    """Return the job that an ElasticJob with these metadata is a replica group of; None for any other."""
    for owner in metadata.get("ownerReferences") or ():
        is_job = owner.get("kind") == "ElasticJob" and owner.get("apiVersion") == names.API_VERSION
        if owner.get("controller") and is_job:
            label = str((metadata.get("labels") or {}).get(names.LABEL_GROUP_INDEX) or "")
            is_number = label.isascii() and label.isdecimal() and len(label) <= 9
            return GroupOf(owner["name"], owner["uid"], int(label) if is_number else 0)
    return None


def is_grouped(job: Mapping[str, Any]) -> bool:
    """Return whether an ElasticJob is divided into groups, and so has no workers of its own."""
    return bool((job["spec"].get("elasticPolicy") or {}).get("replicaGroups"))


def group_name(job: str, index: int) -> str:
    """Return the name of a group's ElasticJob."""
    return f"{job}-group-{index}"
