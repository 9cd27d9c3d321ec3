"""Which replica group of which job an ElasticJob is. Pure."""

from __future__ import annotations

from dataclasses import dataclass

from controller.resources import Object
from crds import names
from crds.elasticjob import ElasticJob
from crds.replica_groups import index_of


@dataclass(frozen=True)
class GroupOf:
    """The job that a group belongs to, by the group's controlling owner and name: labels are for people."""

    name: str
    uid: str
    index: int

    @property
    def labels(self) -> dict[str, str]:
        """The labels of all its objects."""
        return {names.LABEL_GROUPED_JOB: self.name, names.LABEL_GROUP_INDEX: str(self.index)}


def group_of(job: Object | ElasticJob) -> GroupOf | None:
    """Return the job that an ElasticJob is a replica group of; None for one that stands alone."""
    if isinstance(job, ElasticJob):
        name, owners = job.metadata.name, job.metadata.owner_references
    else:
        name, owners = job["metadata"]["name"], job["metadata"].get("ownerReferences") or []
    for owner in owners:
        is_job = owner.get("kind") == "ElasticJob" and owner.get("apiVersion") == names.API_VERSION
        if owner.get("controller") and is_job:
            index = index_of(owner["name"], name)
            return None if index is None else GroupOf(owner["name"], owner["uid"], index)
    return None


def is_grouped(job: Object) -> bool:
    """Return whether an ElasticJob is divided into groups, and so has no workers of its own."""
    return bool((job["spec"].get("elasticPolicy") or {}).get("replicaGroups"))


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
