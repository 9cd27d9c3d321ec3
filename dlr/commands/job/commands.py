"""The commands of `dlr job` under their names."""

from __future__ import annotations

import typer

from dlr.commands.job.delete import delete
from dlr.commands.job.events import events
from dlr.commands.job.listing import list_jobs
from dlr.commands.job.logs import logs
from dlr.commands.job.scale import scale
from dlr.commands.job.status import status
from dlr.commands.job.submit import submit
from dlr.commands.job.suspension import resume, suspend
from dlr.commands.job.timeline.command import timeline

jobs = typer.Typer(help="Submit, look at, change and delete training jobs.", no_args_is_help=True)
jobs.command()(submit)
jobs.command("list")(list_jobs)
jobs.command()(status)
jobs.command()(logs)
jobs.command()(events)
jobs.command()(timeline)
jobs.command()(scale)
jobs.command()(suspend)
jobs.command()(resume)
jobs.command()(delete)
