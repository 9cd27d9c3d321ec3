"""Setting the number of a job's workers."""

from __future__ import annotations

from controller.wording import counted
from crds import names
from dlr.job.lookup import get_unfinished_job
from dlr.kube.api import ELASTICJOBS, Api, ApiFailure
from dlr.kube.errors import CommandError


def set_replicas(api: Api, name: str, replicas: int) -> int:
    """Ask for so many workers; how many were wanted before.

    Raises:
        CommandError: the job has ended, or cannot have so many.
    """
    job = get_unfinished_job(api, name)
    before = job["spec"]["replicaSpecs"].get(names.WORKER, {}).get("replicas")
    if before is None:
        raise CommandError(f"The job {name!r} has no workers to scale (spec.replicaSpecs.worker).")
    if before != replicas:
        try:
            api.patch(ELASTICJOBS, name, "scale", patch={"spec": {"replicas": replicas}})
        except ApiFailure as failure:
            reasons = "; ".join(str(cause) for cause in failure.causes) or str(failure)
            raise CommandError(
                f"The job {name!r} cannot have {counted(replicas, 'worker')}: {reasons}."
            ) from failure
    return int(before)
