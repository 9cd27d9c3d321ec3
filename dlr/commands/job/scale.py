"""`dlr job scale`: ask for another count of workers, as `kubectl scale` does."""

from __future__ import annotations

from typing import Annotated

import typer

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
    job = get_unfinished_job(api, name)
    before = job["spec"]["replicaSpecs"].get(names.WORKER, {}).get("replicas")
    if before is None:
        raise CommandError(f"The job {name!r} has no workers to scale (spec.replicaSpecs.worker).")
    said = f"elasticjob {api.namespace}/{name}"
    if before == replicas:
        print(f"{said} wants {replicas} workers already")
        return
    try:
        api.patch(ELASTICJOBS, name, "scale", patch={"spec": {"replicas": replicas}})
    except ApiFailure as failure:
        reasons = "; ".join(str(cause) for cause in failure.causes) or str(failure)
        raise CommandError(f"The job {name!r} cannot have {replicas} workers: {reasons}.") from failure
    print(f"{said} scaled from {before} to {replicas} workers")
