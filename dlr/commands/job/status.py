"""`dlr job status`: all there is to know of a job on one screen, once or until it ends."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Iterator, Sequence
from datetime import datetime
from typing import Annotated, Any

import typer
from rich.live import Live

from dlr.commands.job.screen import Snapshot, render
from dlr.commands.options import Context, JobName, Kubeconfig, Namespace, Output
from dlr.commands.output import (
    Format,
    console,
    print_json,
    show,
)
from dlr.job import report
from dlr.job.failures import broken_worlds, ended_pods
from dlr.job.lookup import get_job, list_workers
from dlr.job.wording import utc_now
from dlr.kube.api import EVENTS, Api
from dlr.kube.connection import connect
from dlr.kube.errors import CommandError
from dlr.kube.following import until_finished

JSON = dict[str, Any]


class JobFailed(CommandError):
    """The watched job ended, and not well: scripts see it by the exit code."""

    exit_code = 2


def status(
    name: JobName,
    watch: Annotated[
        bool, typer.Option("--watch", "-w", help="Show changes until the job ends; exit code 2 if it failed.")
    ] = False,
    namespace: Namespace = None,
    output: Output = Format.TABLE,
    kubeconfig: Kubeconfig = None,
    context: Context = None,
) -> None:
    """Show a job on one screen: phase, world, progress, goodput, workers, last Events."""
    api = Api(connect(kubeconfig, context, namespace))
    if watch:
        _watch(api, name, output)
        return
    snapshot = take_snapshot(api, name)
    if output is Format.JSON:
        print_json(snapshot.as_json())
    else:
        show(render(snapshot, utc_now(), console()))


def take_snapshot(api: Api, name: str) -> Snapshot:
    job = get_job(api, name)
    workers = report.sort_workers(list_workers(api, name))
    return Snapshot(job, workers, report.job_events(api.find(EVENTS), job))


def _watch(api: Api, name: str, output: Format) -> None:
    snapshots = until_finished(lambda: take_snapshot(api, name), lambda shot: report.is_finished(shot.job))
    if output is Format.JSON:
        last = _print_changes(snapshots, lambda snapshot: json.dumps(snapshot.as_json()), _resource_versions)
    elif sys.stdout.isatty():
        last = _redraw(snapshots)
    else:
        last = _print_changes(snapshots, _stamped_line, lambda shot: change_line(shot.job, shot.workers))
    if report.phase(last.job) == "Failed":
        failure = (last.job["status"].get("lastFailure") or {}).get("message") or "see its conditions"
        raise JobFailed(f"The job {name!r} failed: {failure}")


def _redraw(snapshots: Iterator[Snapshot]) -> Snapshot:
    with Live(console=console(), auto_refresh=False) as live:
        for snapshot in snapshots:
            live.update(render(snapshot, utc_now(), live.console), refresh=True)
    return snapshot


def _print_changes(
    snapshots: Iterator[Snapshot], line: Callable[[Snapshot], str], identity: Callable[[Snapshot], object]
) -> Snapshot:
    shown: object = None
    for snapshot in snapshots:
        if identity(snapshot) != shown:
            shown = identity(snapshot)
            print(line(snapshot), flush=True)
    return snapshot


def _resource_versions(snapshot: Snapshot) -> object:
    everything = [snapshot.job, *snapshot.workers, *snapshot.events]
    return [(item["metadata"]["uid"], item["metadata"]["resourceVersion"]) for item in everything]


def _stamped_line(snapshot: Snapshot) -> str:
    return f"{datetime.now().astimezone():%H:%M:%S}  {change_line(snapshot.job, snapshot.workers)}"


def change_line(job: JSON, workers: Sequence[JSON]) -> str:
    """A watch's line where there is no terminal: equal as long as nothing worth a line has happened."""
    world = job.get("status", {}).get("rendezvous") or {}
    broken, pods = sum(broken_worlds(job).values()), sum(ended_pods(job, workers).values())
    line = (
        f"{report.phase(job)}, workers {report.workers_line(job)}, "
        f"round {world.get('round', 0)} {world.get('phase') or 'not formed'}, "
        f"failures of processes {broken}, of Pods {pods}"
    )
    why = report.why_line(job)
    return f"{line}: {why}" if why else line
