"""`dlr dashboard`: serve the page on this machine until Ctrl-C."""

from __future__ import annotations

import asyncio
from typing import Annotated

import typer

from controller.garbage import keep_pauses_short
from dlr.commands.options import complete_job_name, object_name, with_cluster
from dlr.dashboard.server import Dashboard, serve
from dlr.job.lookup import get_job
from dlr.kube.api import Api


@with_cluster
def dashboard(
    api: Api,
    name: Annotated[
        str | None,
        typer.Argument(
            callback=object_name,
            help="The job to begin with, instead of all.",
            autocompletion=complete_job_name,
        ),
    ] = None,
    all_namespaces: Annotated[
        bool, typer.Option("--all-namespaces", "-A", help="Jobs of all namespaces.")
    ] = False,
    port: Annotated[int, typer.Option(min=0, max=65_535, help="On 127.0.0.1; 0 is any free one.")] = 0,
) -> None:
    """Show jobs on a web page of this machine alone."""
    if name:
        get_job(api, name)
    keep_pauses_short()
    begin = f"#/job/{api.namespace}/{name}" if name else ""
    page = Dashboard(api, all_namespaces=all_namespaces)
    asyncio.run(_serve(page, port, begin))


async def _serve(page: Dashboard, port: int, begin: str) -> None:
    async with serve(page, port) as url:
        print(f"{url}{begin}", flush=True)
        await asyncio.Event().wait()
