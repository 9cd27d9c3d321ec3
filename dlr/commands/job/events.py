"""`dlr job events`: what happened to a job, its workers and its Pods, in the order of time."""

from __future__ import annotations

import sys

from dlr.commands.api import EVENTS, Api
from dlr.commands.connection import connect
from dlr.commands.job import report
from dlr.commands.job.lookup import get_job
from dlr.commands.options import Context, JobName, Kubeconfig, Namespace, Output
from dlr.commands.output import Format, print_json, show_table, utc_now


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
        now = utc_now()
        show_table(report.EVENT_COLUMNS, [report.event_row(event, now) for event in found])
    else:
        print(
            f"There are no Events of ElasticJob {name!r} (clusters forget them after an hour).",
            file=sys.stderr,
        )
