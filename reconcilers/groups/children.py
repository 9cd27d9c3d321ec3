"""The ElasticJobs of a job's replica groups: their desired state, and the writes that lead to it. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from controller.resources import Object
from crds import names
from crds.elasticjob import ElasticJob
from crds.grouping import GroupOf, group_name, index_of
from reconcilers.observed.builder import owner_reference
from reconcilers.observed.containers import has_ended
from reconcilers.observed.status_patch import merge_patch
from reconcilers.runtime.acts import Act, Event, RequestVerb
from reconcilers.runtime.kinds import ELASTICJOBS

OF_THE_WHOLE = ("ttlSecondsAfterFinished", "activeDeadlineSeconds")
"""Fields of a runPolicy that end the whole job, and that its groups do not get."""
MOST_FALSE = 100
"""Limit of false groups that one look deletes."""


def is_halted(job: Object) -> bool:
    """Return whether the groups should be suspended: the job is suspended or deleted, or has ended."""
    return bool(job["spec"].get("suspend") or job["metadata"].get("deletionTimestamp")) or has_ended(job)


def is_outdated(job: ElasticJob, index: int, group: ElasticJob, halted: bool) -> bool:
    """Return whether a group differs from its desired state.

    Specs are not compared, since the cache may have only a part of them: each write notes the generation of
    the job that it is made from, and that of the group to which it leads.
    """
    metadata, whole = group.metadata, job.metadata
    made_of = metadata.annotations.get(names.ANNOTATION_GROUPED_GENERATION)
    return (
        made_of != generations(whole.generation, metadata.generation)
        or group.spec.suspend is not halted
        or metadata.labels != labels_of(whole.labels, GroupOf(whole.name, whole.uid, index))
    )


def labels_of(job: Mapping[str, str], group: GroupOf) -> dict[str, str]:
    """Return all labels of a group: its job's, by which queues and people find it, and its own."""
    return {**job, names.LABEL_MANAGED_BY: names.MANAGER, **group.labels}


def generations(job: int, group: int) -> str:
    """Return the annotation of a group of one generation that was made from a job of another."""
    return f"{job}.{group}"


def group_job(job: Object, index: int) -> Object:
    """Return the ElasticJob of a group."""
    metadata, spec = job["metadata"], job["spec"]
    policy = dict(spec["elasticPolicy"])
    workers = policy.pop("replicaGroups")["workers"]
    worker = spec["replicaSpecs"][names.WORKER] | {"replicas": workers, "minReplicas": workers}
    run = {key: value for key, value in (spec.get("runPolicy") or {}).items() if key not in OF_THE_WHOLE}
    return {
        "apiVersion": names.API_VERSION,
        "kind": ELASTICJOBS.kind,
        "metadata": {
            "name": group_name(metadata["name"], index),
            "namespace": metadata["namespace"],
            "labels": labels_of(
                metadata.get("labels") or {}, GroupOf(metadata["name"], metadata["uid"], index)
            ),
            "annotations": {names.ANNOTATION_GROUPED_GENERATION: generations(metadata["generation"], 1)},
            "ownerReferences": [owner_reference(ELASTICJOBS.kind, metadata["name"], metadata["uid"])],
        },
        "spec": spec
        | {
            "elasticPolicy": policy,
            "replicaSpecs": {names.WORKER: worker},
            "runPolicy": run,
            "suspend": is_halted(job),
        },
    }


def renewal(job: Object, index: int, group: Object) -> Act:
    """Return the write that brings a group to its desired state.

    Args:
        group: the whole stored group; the write is refused if it has changed since.
    """
    wanted, metadata = group_job(job, index), group["metadata"]
    spec = merge_patch(group["spec"], wanted["spec"])
    generation = metadata["generation"] + bool(spec)
    made_of = generations(job["metadata"]["generation"], generation)
    body = {
        "metadata": {
            "resourceVersion": metadata["resourceVersion"],
            "labels": dict.fromkeys(metadata.get("labels") or {}) | wanted["metadata"]["labels"],
            "annotations": {names.ANNOTATION_GROUPED_GENERATION: made_of},
        },
        "spec": spec,
    }
    return Act(RequestVerb.PATCH, ELASTICJOBS, metadata["name"], metadata["namespace"], body)


def false_groups(job: ElasticJob, owned: Iterable[Object]) -> list[Act]:
    """Return the deletions of ElasticJobs with a group's name and owner that dlr has not created.

    One of them may be from a controller that crashed before it wrote the uid; it is created again.
    """
    acts = []
    for metadata in (each["metadata"] for each in owned):
        name, namespace = metadata["name"], metadata["namespace"]
        index = index_of(job.metadata.name, name)
        if index is None or metadata.get("deletionTimestamp"):
            continue
        message = f"the ElasticJob {name} was deleted: dlr has not created it as a group of the job"
        events = (Event("Warning", "FalseGroupDeleted", message),) if index < job.group_count else ()
        acts.append(Act(RequestVerb.DELETE, ELASTICJOBS, name, namespace, uid=metadata["uid"], events=events))
    return acts[:MOST_FALSE]


def with_uids(job: Object, made: Mapping[int, str]) -> list[Object]:
    """Return `groups` of a job's status with the new groups, whose Pods wait for that."""
    groups = {each["index"]: each for each in (job.get("status") or {}).get("groups") or ()}
    groups |= {index: {"index": index, "uid": uid} for index, uid in made.items()}
    return [groups[index] for index in sorted(groups)]
