"""`dlr job scale`: ask for another count of workers, as `kubectl scale` does."""

from __future__ import annotations

from typing import Annotated

import typer

from controller.wording import counted
from dlr.commands.options import Context, JobName, Kubeconfig, Namespace
from dlr.job.scaling import set_replicas
from dlr.kube.api import Api
from dlr.kube.connection import connect


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
