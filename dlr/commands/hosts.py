"""`dlr hosts`: a job's workers in the format of Horovod's host discovery."""

from __future__ import annotations

from typing import Annotated

import typer

from agent.hosts import hosts_of
from controller.wording import printable
from dlr.commands.options import JobName, with_cluster
from dlr.job.groups import refuse_grouped
from dlr.job.lookup import get_job, list_workers
from dlr.kube.api import Api


@with_cluster
def hosts(
    api: Api,
    name: JobName,
    slots: Annotated[
        int | None, typer.Option(min=1, help="Processes on each; by default as many as its agent says.")
    ] = None,
) -> None:
    """Print a job's workers for Horovod: `address:slots`."""
    refuse_grouped(get_job(api, name), "hosts")
    for line in hosts_of(list_workers(api, name), slots):
        print(printable(line))
