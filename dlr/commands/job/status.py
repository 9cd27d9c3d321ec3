"""`dlr job status`: a job on one screen, once or until it ends."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Iterator
from datetime import datetime
from typing import Annotated

import typer
from rich.live import Live

from crds.grouping import is_grouped
from dlr.commands.errors import JobFailedError
from dlr.commands.job.screen import render
from dlr.commands.options import JobName, Output, with_cluster
from dlr.commands.output import Format, console, print_json, show
from dlr.job import report
from dlr.job.case import Case, read_people
from dlr.job.failures import failures_of
from dlr.job.groups import groups_line
from dlr.job.unreadable import naming_what_cannot_be_read
from dlr.job.wording import plain
from dlr.kube.api import JSON, Api
from dlr.kube.following import until_finished


@with_cluster
def status(
    api: Api,
    name: JobName,
    watch: Annotated[
        bool, typer.Option("--watch", "-w", help="Show changes until the job ends; exit code 2 if it failed.")
    ] = False,
    output: Output = Format.TABLE,
) -> None:
    """Show a job on one screen: phase, world, workers, Events."""
    with naming_what_cannot_be_read(name):
        if watch:
            _watch(api, name, output)
        else:
            _show(read_people(api, name), output)


def _show(case: Case, output: Format) -> None:
    if output is Format.JSON:
        print_json(_as_json(case))
    else:
        show(render(case, console()))
    _warn_of_unread(case)


def _warn_of_unread(case: Case) -> None:
    for text in case.unread:
        print(f"dlr: warning: {plain(text)}", file=sys.stderr)


def _as_json(case: Case) -> JSON:
    return {"job": case.job, "workers": case.workers, "events": case.events}


def _watch(api: Api, name: str, output: Format) -> None:
    cases = until_finished(lambda: read_people(api, name), lambda case: report.is_finished(case.job))
    if output is Format.JSON:
        last = _print_changes(cases, lambda case: json.dumps(_as_json(case)), _as_json)
    elif sys.stdout.isatty() and not console().is_dumb_terminal:  # rich draws only the last one there
        with Live(console=console(), auto_refresh=False) as live:
            for last in cases:
                live.update(render(last, live.console), refresh=True)
    else:
        last = _print_changes(cases, _stamped_line, lambda case: change_line(case.job))
    _warn_of_unread(last)
    if report.phase(last.job) == "Failed":
        failure = (last.job["status"].get("lastFailure") or {}).get("message") or "see its conditions"
        raise JobFailedError(f"The job {name!r} failed: {failure}")


def _print_changes(
    cases: Iterator[Case], line: Callable[[Case], str], identity: Callable[[Case], object]
) -> Case:
    shown: object = None
    for case in cases:
        if identity(case) != shown:
            shown = identity(case)
            print(line(case), flush=True)
    return case


def _stamped_line(case: Case) -> str:
    return f"{datetime.now().astimezone():%H:%M:%S}  {plain(change_line(case.job))}"


def change_line(job: JSON) -> str:
    """Return the line that a watch prints without a terminal whenever it changes."""
    world = job.get("status", {}).get("rendezvous") or {}
    together = f"round {world.get('round', 0)} {world.get('phase') or 'not formed'}"
    if is_grouped(job):
        together = f"groups {groups_line(job)}"
    line = (
        f"{report.phase(job)}, workers {report.workers_line(job)}, {together}, "
        f"failures {sum(failures_of(job).values())}"
    )
    why = report.why_line(job)
    return f"{line}: {why}" if why else line
