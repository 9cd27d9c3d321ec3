"""Jobs and their workers in the cluster: finding them, and changing a job's number of workers."""

from __future__ import annotations

from typing import Any

from controller.wording import counted
from crds import names
from dlr.kube.api import ELASTICJOBS, ELASTICWORKERS, NAMESPACES, Api
from dlr.kube.errors import ApiError

JSON = dict[str, Any]


class NoSuchJob(ApiError):
    """There is no job of that name, or no longer."""


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
    """
    Raises:
        ApiError: the job has ended; `otherwise` says what follows from that.
    """
    job = get_job(api, name)
    phase = job.get("status", {}).get("phase")
    if phase in ("Succeeded", "Failed"):
        raise ApiError(f"The job {name!r} has {phase.lower()}: {otherwise}.")
    return job


def require_namespace(api: Api) -> None:
    """Raise ApiError if the namespace does not exist: its empty lists are then a typing error's."""
    try:
        api.get(NAMESPACES, api.namespace)
    except ApiError as failure:
        if failure.reason == "NotFound":
            raise ApiError(
                f"There is no namespace {api.namespace!r} in the cluster at {api.connection.server}."
            ) from failure
        # Without the right to read namespaces, the empty answer is all there is.


def list_workers(api: Api, job: str) -> list[JSON]:
    return api.find(ELASTICWORKERS, label_selector=f"{names.LABEL_JOB}={job}")


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
