"""Finds jobs and their workers in the cluster, suspends, resumes and scales jobs."""

from __future__ import annotations

from collections.abc import Collection, Sequence

from controller.wording import counted
from crds import names
from crds.grouping import is_grouped, owner_of_group
from crds.ranges import as_ranges
from dlr.job.groups import refuse_group
from dlr.job.report import condition_of
from dlr.kube.api import ELASTICJOBS, ELASTICWORKERS, JSON, NAMESPACES, NODES, SHARDSETS, Api
from dlr.kube.errors import ApiError, UsageError

MOST_GETS = 20
"""Most nodes that are read one by one; for more, all nodes are listed, of which there may be thousands."""


SHARDS_DONE = "ShardsDone"


class NoSuchJob(ApiError):
    """There is no job of that name, or no longer one."""


def get_job(api: Api, name: str) -> JSON:
    try:
        return api.get(ELASTICJOBS, name)
    except ApiError as failure:
        if failure.reason != "NotFound" or not failure.names_object:
            raise
    require_namespace(api)
    raise NoSuchJob(
        f"There is no ElasticJob {name!r} in namespace {api.namespace!r}; "
        "`dlr job list -A` shows where there are any."
    )


def get_unfinished_job(api: Api, name: str, otherwise: str = "there is nothing to change any more") -> JSON:
    """Read a job that must not have ended.

    Args:
        otherwise: consequence to name in the error.

    Raises:
        ApiError: the job has ended.
    """
    job = get_job(api, name)
    phase = job.get("status", {}).get("phase")
    if phase in ("Succeeded", "Failed"):
        raise ApiError(f"The job {name!r} has {phase.lower()}: {otherwise}.")
    return job


def require_namespace(api: Api) -> None:
    """Raise ApiError if the namespace does not exist: an empty list is then due to a typing error."""
    try:
        api.get(NAMESPACES, api.namespace)
    except ApiError as failure:
        if failure.reason == "NotFound":
            raise ApiError(
                f"There is no namespace {api.namespace!r} in the cluster at {api.connection.server}."
            ) from failure
        # Without the permission to read namespaces, the empty answer has to do.


def list_workers(api: Api, job: str) -> list[JSON]:
    return api.find(ELASTICWORKERS, label_selector=f"{names.LABEL_JOB}={job}")


def groups_of(api: Api, job: JSON) -> list[JSON]:
    """Return the ElasticJobs of a job's replica groups, in order, by their owner references."""
    if not is_grouped(job):
        return []
    found = api.find(ELASTICJOBS, label_selector=f"{names.LABEL_GROUPED_JOB}={job['metadata']['name']}")
    uid = job["metadata"]["uid"]
    owned = [
        (group.index, each)
        for each in found
        if (group := owner_of_group(each["metadata"])) and group.uid == uid
    ]
    return [each for _, each in sorted(owned, key=lambda pair: pair[0])]


def get_group(api: Api, job: JSON, index: int) -> JSON:
    """Return the ElasticJob of one of a job's replica groups.

    Raises:
        UsageError: the job has no such group.
    """
    name = job["metadata"]["name"]
    if not is_grouped(job):
        raise UsageError(f"ElasticJob {name!r} has no replica groups; drop --group.")
    found = {group.index: each for each in groups_of(api, job) if (group := owner_of_group(each["metadata"]))}
    if index not in found:
        there = f"its groups are {as_ranges(sorted(found))}" if found else "none is made yet"
        raise UsageError(f"ElasticJob {name!r} has no replica group {index}; {there}.")
    return found[index]


def workers_of(api: Api, job: JSON, groups: Sequence[JSON] | None = None) -> list[JSON]:
    """Return a job's workers; for a job with replica groups those of all groups, group by group.

    Args:
        groups: the ElasticJobs of its groups, if already read.
    """
    if not is_grouped(job):
        return list_workers(api, job["metadata"]["name"])
    groups = groups_of(api, job) if groups is None else groups
    order = {each["metadata"]["name"]: place for place, each in enumerate(groups)}
    found = api.find(ELASTICWORKERS, label_selector=f"{names.LABEL_GROUPED_JOB}={job['metadata']['name']}")
    workers = [worker for worker in found if worker["spec"].get("jobName") in order]
    return sorted(workers, key=lambda worker: (order[worker["spec"]["jobName"]], worker["spec"]["index"]))


def shard_sets_of(api: Api, job: JSON) -> list[JSON]:
    """Return the ShardSets of a job; without the condition `ShardsDone` it has none, and nothing is read."""
    if not condition_of(job, SHARDS_DONE):
        return []
    metadata = job["metadata"]
    found = api.find(SHARDSETS, label_selector=f"{names.LABEL_JOB_UID}={metadata['uid']}")
    return sorted(found, key=lambda each: each["spec"]["setName"])


def find_nodes(api: Api, node_names: Collection[str]) -> list[JSON]:
    """Return the nodes with these names that exist."""
    if len(node_names) > MOST_GETS:
        return [node for node in api.find(NODES) if node["metadata"]["name"] in node_names]
    found = []
    for name in sorted(node_names):
        try:
            found.append(api.get(NODES, name))
        except ApiError as failure:
            if failure.reason != "NotFound":
                raise
    return found


def set_suspended(api: Api, name: str, value: bool) -> bool:
    """Suspend a job, or resume it; return whether that was a change.

    Raises:
        ApiError: the job has ended.
        UsageError: it is a replica group.
    """
    job = get_unfinished_job(api, name)
    refuse_group(job, "suspend" if value else "resume")
    if bool(job["spec"].get("suspend")) is value:
        return False
    api.patch(ELASTICJOBS, name, patch={"spec": {"suspend": value}})
    return True


def set_replicas(api: Api, name: str, replicas: int) -> int:
    """Set the number of a job's workers, and return the number before.

    Raises:
        ApiError: the job has ended, or cannot have so many.
    """
    job = get_unfinished_job(api, name)
    before = job["spec"]["replicaSpecs"].get(names.WORKER, {}).get("replicas")
    if before is None:
        raise ApiError(f"The job {name!r} has no workers to scale (spec.replicaSpecs.worker).")
    if before != replicas:
        try:
            api.patch(ELASTICJOBS, name, "scale", patch={"spec": {"replicas": replicas}})
        except ApiError as failure:
            reasons = "; ".join(str(cause) for cause in failure.causes) or str(failure)
            raise ApiError(
                f"The job {name!r} cannot have {counted(replicas, 'worker')}: {reasons}."
            ) from failure
    return int(before)
