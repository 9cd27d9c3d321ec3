"""`dlr job events`: what happened to a job, its workers and its Pods, in the order of time."""

from __future__ import annotations

import sys
from typing import Any

from dlr.commands.options import Context, JobName, Kubeconfig, Namespace, Output
from dlr.commands.output import (
    NARROW_WIDTH,
    Format,
    console,
    print_json,
    show,
    show_table,
)
from dlr.job import report
from dlr.job.lookup import get_job
from dlr.job.wording import utc_now
from dlr.kube.api import EVENTS, Api
from dlr.kube.connection import connect

JSON = dict[str, Any]


def events(
    name: JobName,
    namespace: Namespace = None,
    output: Output = Format.TABLE,
    kubeconfig: Kubeconfig = None,
    context: Context = None,
) -> None:
    """Show the Events of a job, its workers and its Pods, oldest first."""
    api = Api(connect(kubeconfig, context, namespace))
    job = get_job(api, name)
    found = report.job_events(api.find(EVENTS), job)
    if output is Format.JSON:
        print_json(found)
    elif found:
        _show(job, found)
    else:
        print(
            f"There are no Events of ElasticJob {name!r} (clusters forget them after an hour).",
            file=sys.stderr,
        )


def _show(job: JSON, found: list[JSON]) -> None:
    """Show Events; on a narrow terminal the message has the room of two columns."""
    now = utc_now()
    if sys.stdout.isatty() and console().width <= NARROW_WIDTH:
        from dlr.commands.job.screen import short_events

        show(short_events(job, found, now))
        return
    show_table(report.EVENT_COLUMNS, [report.event_row(event, now) for event in found])
