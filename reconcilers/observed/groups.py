"""Which replica group of which job an ElasticJob is. Pure."""

from __future__ import annotations

from controller.resources import Object
from crds.elasticjob import ElasticJob
from crds.grouping import GroupOf, group_count, is_grouped, owner_of_group


def group_of(job: Object | ElasticJob) -> GroupOf | None:
    """Return the job that an ElasticJob is a replica group of; None for one that stands alone."""
    if isinstance(job, ElasticJob):
        metadata = job.metadata
        return owner_of_group({"name": metadata.name, "ownerReferences": metadata.owner_references})
    return owner_of_group(job["metadata"])


def stranger_to(job: Object, parent: Object | None) -> str:
    """Return why an ElasticJob that names an owner as a replica group does is none; empty for all others.

    Anybody may write an ownerReference. The names of groups that a job wants are taken by its own.
    """
    group = group_of(job)
    if group is None:
        return ""
    name = job["metadata"]["name"]
    if parent is None or parent["metadata"]["uid"] != group.uid:
        return f"{name} is no replica group of {group.name}: there is no such job of its uid {group.uid}"
    if not is_grouped(parent):
        return f"{name} is no replica group of {group.name}, which has none"
    count = group_count(parent)
    return "" if group.index < count else f"{name} is no replica group of {group.name}, which has {count}"


def key_uid(owner: Object) -> str:
    """Return the uid that the Secret with the key of an owner's Pods is named by: groups share one."""
    group = group_of(owner) if owner["kind"] == "ElasticJob" else None
    uid: str = owner["metadata"]["uid"] if group is None else group.uid
    return uid


def group_labels(job: Object | ElasticJob) -> dict[str, str]:
    """Return the labels of all objects of a replica group; none for a job that stands alone.

    They follow from the owner, not from the job's labels: NetworkPolicies of groups select Pods by them.
    """
    group = group_of(job)
    return {} if group is None else group.labels
