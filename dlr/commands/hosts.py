"""`dlr hosts`: a job's workers as Horovod's host discovery wants them."""

from __future__ import annotations

from typing import Annotated

import typer

from agent.hosts import hosts_of
from dlr.commands.options import Context, JobName, Kubeconfig, Namespace
from dlr.job.lookup import get_job, list_workers
from dlr.job.report import is_finished
from dlr.kube.api import Api
from dlr.kube.connection import connect
from dlr.kube.following import until_finished


def hosts(
    name: JobName,
    slots: Annotated[
        int | None, typer.Option(min=1, help="Processes on each; by default as many as its agent says.")
    ] = None,
    watch: Annotated[
        bool, typer.Option("--watch", help="Print them again when they change, until the job ends.")
    ] = False,
    namespace: Namespace = None,
    kubeconfig: Kubeconfig = None,
    context: Context = None,
) -> None:
    """Print a job's workers as `address:slots`, those that can be used now: Horovod's host discovery."""
    api = Api(connect(kubeconfig, context, namespace))
    get_job(api, name)
    if not watch:
        _print(hosts_of(list_workers(api, name), slots))
        return
    shown: list[str] | None = None
    for job, workers in until_finished(
        lambda: (get_job(api, name), list_workers(api, name)), lambda seen: is_finished(seen[0])
    ):
        found = [] if is_finished(job) else hosts_of(workers, slots)
        if found != shown:
            _print([*found, ""])  # an empty line ends each list
            shown = found


def _print(lines: list[str]) -> None:
    for line in lines:
        print(line, flush=True)
