"""`dlr job delete`: delete jobs, and stay until their Pods are gone."""

from __future__ import annotations

import sys
import time
from typing import Annotated

import typer

from crds import names
from dlr.commands.api import ELASTICJOBS, PODS, Api, ApiFailure
from dlr.commands.connection import connect
from dlr.commands.errors import CommandError, Interrupted
from dlr.commands.job.lookup import get_job
from dlr.commands.options import Context, Kubeconfig, Namespace, complete_job_name, number, object_names

POLL_SECONDS = 0.5
MOST_NAMED = 5
"""Of what is left of a job."""


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


def wait_until_gone(api: Api, name: str, deadline: float) -> None:
    """
    Args:
        deadline: of `time.monotonic`.

    Raises:
        CommandError: by then something of it is still there.
    """
    told = False
    while remains := _remains(api, name):
        if time.monotonic() > deadline:
            raise CommandError(
                f"The job {name!r} is deleted, but not all of it is gone yet: {_in_short(remains)}."
            )
        if not told:
            told = True
            print(
                f"elasticjob {api.namespace}/{name} is being deleted; waiting for {_in_short(remains)}",
                file=sys.stderr,
            )
        time.sleep(POLL_SECONDS)


def _in_short(remains: list[str]) -> str:
    more = len(remains) - MOST_NAMED
    return ", ".join(remains if more <= 0 else [*remains[:MOST_NAMED], f"and {more} more"])


def _remains(api: Api, name: str) -> list[str]:
    pods = api.find(PODS, label_selector=f"{names.LABEL_JOB}={name}")
    remains = [f"pod/{pod['metadata']['name']}" for pod in pods]
    try:
        api.get(ELASTICJOBS, name)
        remains.append(f"elasticjob/{name}")
    except ApiFailure as failure:
        if failure.reason != "NotFound":
            raise
    return remains
