"""Which replica group of which job an ElasticJob is. Pure."""

from __future__ import annotations

from controller.resources import Object
from crds.elasticjob import ElasticJob
from crds.grouping import GroupOf, owner_of_group


def group_of(job: Object | ElasticJob) -> GroupOf | None:
    """Return the job that an ElasticJob is a replica group of; None for one that stands alone."""
    if isinstance(job, ElasticJob):
        metadata = job.metadata
        return owner_of_group({"name": metadata.name, "ownerReferences": metadata.owner_references})
    return owner_of_group(job["metadata"])


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
