"""Which replica group of which job an ElasticJob is. Pure."""

from __future__ import annotations

from dataclasses import dataclass

from controller.resources import Object
from crds import names
from crds.elasticjob import ElasticJob
from reconcilers.observed.ownership import number_label


@dataclass(frozen=True)
class GroupOf:
    """The job that a group belongs to, by the group's controlling owner: its labels are for people."""

    name: str
    uid: str
    index: int


def group_of(job: Object | ElasticJob) -> GroupOf | None:
    """Return the job that an ElasticJob is a replica group of; None for one that stands alone."""
    if isinstance(job, ElasticJob):
        metadata: Object = {"labels": job.metadata.labels, "ownerReferences": job.metadata.owner_references}
    else:
        metadata = job["metadata"]
    for owner in metadata.get("ownerReferences") or ():
        is_job = owner.get("kind") == "ElasticJob" and owner.get("apiVersion") == names.API_VERSION
        if owner.get("controller") and is_job:
            index = number_label({"metadata": metadata}, names.LABEL_GROUP_INDEX) or 0
            return GroupOf(owner["name"], owner["uid"], index)
    return None


def is_grouped(job: Object) -> bool:
    """Return whether an ElasticJob is divided into groups, and so has no workers of its own."""
    return bool((job["spec"].get("elasticPolicy") or {}).get("replicaGroups"))


def key_uid(owner: Object) -> str:
    """Return the uid that the Secret with the key of an owner's Pods is named by: groups share one."""
    group = group_of(owner) if owner["kind"] == "ElasticJob" else None
    uid: str = owner["metadata"]["uid"] if group is None else group.uid
    return uid


def group_labels(labels: dict[str, str]) -> dict[str, str]:
    """Return those of an object's labels that name its group."""
    return {key: labels[key] for key in (names.LABEL_GROUPED_JOB, names.LABEL_GROUP_INDEX) if key in labels}
