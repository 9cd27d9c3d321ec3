"""The relation of an ElasticJob that is a replica group to its job. Pure."""

from __future__ import annotations

from controller.resources import Object
from crds.elasticjob import ElasticJob
from crds.grouping import GroupOf, group_count, is_grouped, owner_of_group
from reconcilers.runtime.kinds import ELASTICJOBS


def group_of(owner: Object | ElasticJob) -> GroupOf | None:
    """Return the job that an ElasticJob is a replica group of; None for one that stands alone.

    An owner of another kind is none: a NodeCheck may have a group's name and owner.
    """
    if isinstance(owner, ElasticJob):
        metadata = owner.metadata
        return owner_of_group({"name": metadata.name, "ownerReferences": metadata.owner_references})
    return owner_of_group(owner["metadata"]) if owner["kind"] == ELASTICJOBS.kind else None


def stranger_to(job: Object, parent: Object | None) -> str:
    """Return why an ElasticJob that has a group's name and owner is no replica group; empty for all others.

    Anybody may write an ownerReference and a name, so the uid in the status of the owning job decides.
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
    if group.index >= count:
        return f"{name} is no replica group of {group.name}, which has {count}"
    return f"the status of {group.name} does not have {name}" if is_unknown_to(job, parent) else ""


def is_unknown_to(job: Object, parent: Object | None) -> bool:
    """Whether the parent wants this group, but its status has another uid for it, or none yet."""
    group = group_of(job)
    if group is None or parent is None or group.uid != parent["metadata"]["uid"]:
        return False
    is_wanted = group.index < group_count(parent)
    return is_wanted and made_group(parent, group.index) != job["metadata"]["uid"]


def made_group(parent: Object, index: int) -> str:
    """Return the uid of the ElasticJob that the controller made for a group of a job; empty before that."""
    groups = (parent.get("status") or {}).get("groups") or ()
    return next((each.get("uid", "") for each in groups if each["index"] == index), "")


def key_uid(owner: Object) -> str:
    """Return the uid in the name of the Secret with the key of an owner's Pods: groups share one."""
    group = group_of(owner)
    uid: str = owner["metadata"]["uid"] if group is None else group.uid
    return uid


def group_labels(job: Object | ElasticJob) -> dict[str, str]:
    """Return the labels of all objects of a replica group; none for a job that stands alone.

    They follow from the owner, not from the job's labels: NetworkPolicies of groups select Pods by them.
    """
    group = group_of(job)
    return {} if group is None else group.labels
