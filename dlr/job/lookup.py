"""Finding a job, and saying where to look when it is not there."""

from __future__ import annotations

from typing import Any

from crds import names
from dlr.kube.api import (
    ELASTICJOBS,
    ELASTICWORKERS,
    NAMESPACES,
    Api,
    ApiFailure,
)
from dlr.kube.errors import CommandError

JSON = dict[str, Any]


def get_job(api: Api, name: str) -> JSON:
    try:
        return api.get(ELASTICJOBS, name)
    except ApiFailure as failure:
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
        CommandError: it has ended; `otherwise` says what follows from that.
    """
    job = get_job(api, name)
    phase = job.get("status", {}).get("phase")
    if phase in ("Succeeded", "Failed"):
        raise CommandError(f"The job {name!r} has {phase.lower()}: {otherwise}.")
    return job


class NoSuchJob(CommandError):
    """There is no job of that name, or no longer."""


def require_namespace(api: Api) -> None:
    """An empty answer for a namespace that does not exist is a slip of the pen, not an answer."""
    try:
        api.get(NAMESPACES, api.namespace)
    except ApiFailure as failure:
        if failure.reason == "NotFound":
            raise CommandError(
                f"There is no namespace {api.namespace!r} in the cluster at {api.connection.server}."
            ) from failure
        # Not everybody may read namespaces; then the empty answer is all we know.


def list_workers(api: Api, job: str) -> list[JSON]:
    return api.find(ELASTICWORKERS, label_selector=f"{names.LABEL_JOB}={job}")
