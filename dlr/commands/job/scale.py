"""`dlr job scale`: ask for another count of workers, as `kubectl scale` does."""

from __future__ import annotations

from typing import Annotated

import typer

from controller.wording import counted
from crds import names
from dlr.commands.api import ELASTICJOBS, Api, ApiFailure
from dlr.commands.connection import connect
from dlr.commands.errors import CommandError
from dlr.commands.job.lookup import get_unfinished_job
from dlr.commands.options import Context, JobName, Kubeconfig, Namespace


def scale(
    name: JobName,
    replicas: Annotated[int, typer.Option(min=0, help="How many workers are wanted.")],
    namespace: Namespace = None,
    kubeconfig: Kubeconfig = None,
    context: Context = None,
) -> None:
    """Ask for another count of workers."""
    api = Api(connect(kubeconfig, context, namespace))
    before = set_replicas(api, name, replicas)
    said = f"elasticjob {api.namespace}/{name}"
    if before == replicas:
        print(f"{said} wants {counted(replicas, 'worker')} already")
    else:
        print(f"{said} scaled from {before} to {counted(replicas, 'worker')}")


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
