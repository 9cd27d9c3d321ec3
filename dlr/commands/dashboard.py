"""`dlr dashboard`: serve the page on this machine until Ctrl-C."""

from __future__ import annotations

import asyncio
from typing import Annotated

import typer

from controller.garbage import keep_pauses_short
from dlr.commands.options import complete_job_name, object_name, with_cluster
from dlr.dashboard.opening import open_in_browser
from dlr.dashboard.server import Dashboard, serve
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
    open_browser: Annotated[bool, typer.Option("--open", help="Open it in the browser.")] = False,
) -> None:
    """Show jobs on a web page of this machine alone."""
    keep_pauses_short()
    begin = f"#/job/{api.namespace}/{name}" if name else ""
    page = Dashboard(api, all_namespaces=all_namespaces)
    asyncio.run(_serve(page, port, begin, open_browser=open_browser))


async def _serve(page: Dashboard, port: int, begin: str, *, open_browser: bool) -> None:
    async with serve(page, port) as url:
        print(f"{url}{begin}", flush=True)
        if open_browser:
            await open_in_browser(f"{url}{begin}", page.opened)
        await asyncio.Event().wait()
