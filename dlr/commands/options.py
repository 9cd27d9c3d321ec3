"""The options that every command which talks to a cluster has, spelt once."""

from __future__ import annotations

from typing import Annotated

import typer

from dlr.commands.api import ELASTICJOBS, Api
from dlr.commands.connection import connect
from dlr.commands.errors import CommandError
from dlr.commands.output import Format


def complete_job_name(context: typer.Context, incomplete: str) -> list[str]:
    """For the shell: the jobs there are. No cluster, no suggestions."""
    given = context.params
    try:
        api = Api(connect(given.get("kubeconfig"), given.get("context"), given.get("namespace")))
        jobs = api.find(ELASTICJOBS)
    except CommandError:
        return []
    return [name for job in jobs if (name := job["metadata"]["name"]).startswith(incomplete)]


Kubeconfig = Annotated[
    str | None,
    typer.Option(
        "--kubeconfig",
        help="The kubeconfig to use instead of $KUBECONFIG, the Pod's own account, ~/.kube/config, "
        "or the embedded cluster's.",
    ),
]
Context = Annotated[str | None, typer.Option("--context", help="The kubeconfig's context to use.")]
Namespace = Annotated[
    str | None, typer.Option("--namespace", "-n", help="The namespace, instead of the context's.")
]
Output = Annotated[Format, typer.Option("--output", "-o", help="What to print.")]
JobName = Annotated[str, typer.Argument(help="The job's name.", autocompletion=complete_job_name)]
