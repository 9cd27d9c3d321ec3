"""`dlr job logs`: what the workers print, of one rank, of all, or of the one that failed."""

from __future__ import annotations

import sys
from typing import Annotated

import typer

from dlr.commands.job.failed_log import print_failed_log
from dlr.commands.options import Context, JobName, Kubeconfig, Namespace, not_empty
from dlr.job.log_stream import (
    Following,
    LogLines,
    choose_workers,
    job_and_workers,
    log_lines,
    send_log,
)
from dlr.job.lookup import get_job
from dlr.job.pod_log import Wanted
from dlr.kube.api import Api
from dlr.kube.connection import connect
from dlr.kube.errors import CommandError, UsageError

LAST_LINE_SECONDS = 0.5


def logs(
    name: JobName,
    rank: Annotated[int | None, typer.Option(min=0, help="Only the worker with this node rank.")] = None,
    follow: Annotated[
        bool, typer.Option("--follow", "-f", help="Go on until the job ends, from Pod to Pod.")
    ] = False,
    container: Annotated[
        str | None, typer.Option("--container", "-c", callback=not_empty, help="Not the training container.")
    ] = None,
    tail_lines: Annotated[
        int | None, typer.Option("--tail", min=0, help="Only so many last lines a Pod.")
    ] = None,
    previous: Annotated[
        bool, typer.Option("--previous", "-p", help="Of the container's run before its last restart.")
    ] = False,
    failed: Annotated[
        bool,
        typer.Option("--failed", help="Of the rank that failed first, up to its failure, with what it said."),
    ] = False,
    namespace: Namespace = None,
    kubeconfig: Kubeconfig = None,
    context: Context = None,
) -> None:
    """Print what a job's workers print."""
    connection = connect(kubeconfig, context, namespace)
    api = Api(connection)
    if failed:
        if rank is not None or follow or previous:
            raise UsageError("--failed finds the rank and the Pod itself; drop --rank, -f and -p.")
        print_failed_log(api, name, Wanted(container, tail_lines, previous=False))
        return
    job, found = job_and_workers(api, lambda: get_job(api, name), await_them=follow)
    workers = choose_workers(job, found, rank)
    wanted = Wanted(container, tail_lines, previous)
    if follow:
        try:
            Following(connection, job, workers, wanted, _print_line).join()
        except KeyboardInterrupt:
            LogLines.lock.acquire(timeout=LAST_LINE_SECONDS)  # none of them writes while the interpreter ends
            raise
        return
    pairs = zip(workers, log_lines(workers, _print_line), strict=True)
    failures = [send_log(api, worker, wanted, lines) for worker, lines in pairs]
    if told := [failure for failure in failures if failure]:
        raise CommandError("\n     ".join(told))


def _print_line(line: str) -> None:
    sys.stdout.write(f"{line}\n")
    sys.stdout.flush()
