"""`dlr job delete`: delete jobs, and stay until their Pods are gone."""

from __future__ import annotations

import time
from typing import Annotated, Any

import typer

from dlr.commands.options import Context, Kubeconfig, Namespace, complete_job_name, number, object_names
from dlr.job.deletion import wait_until_gone
from dlr.job.lookup import get_job
from dlr.kube.api import (
    ELASTICJOBS,
    Api,
)
from dlr.kube.connection import connect
from dlr.kube.errors import Interrupted

JSON = dict[str, Any]


def delete(
    job_names: Annotated[
        list[str],
        typer.Argument(
            metavar="NAME...",
            callback=object_names,
            help="The jobs' names.",
            autocompletion=complete_job_name,
        ),
    ],
    wait: Annotated[bool, typer.Option(help="Wait until the jobs and their Pods are gone.")] = True,
    timeout_seconds: Annotated[
        float, typer.Option("--timeout", min=0, callback=number, help="How many seconds to wait.")
    ] = 120.0,
    namespace: Namespace = None,
    kubeconfig: Kubeconfig = None,
    context: Context = None,
) -> None:
    """Delete ElasticJobs with everything they made."""
    api = Api(connect(kubeconfig, context, namespace))
    for name in job_names:
        get_job(api, name)
    for name in job_names:
        api.delete(ELASTICJOBS, name)
        if not wait:
            print(f"elasticjob {api.namespace}/{name} is being deleted")
    if not wait:
        return
    deadline = time.monotonic() + timeout_seconds
    for place, name in enumerate(job_names):
        try:
            wait_until_gone(api, name, deadline)
        except KeyboardInterrupt:
            left = ", ".join(f"{api.namespace}/{each}" for each in job_names[place:])
            raise Interrupted(f"The cluster goes on deleting {left} without you.") from None
        print(f"elasticjob {api.namespace}/{name} deleted", flush=True)
