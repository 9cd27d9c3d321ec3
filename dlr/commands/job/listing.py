"""`dlr job list`."""

from __future__ import annotations

import sys
from typing import Annotated

import typer

from dlr.commands.options import Context, Kubeconfig, Namespace, Output
from dlr.commands.output import (
    NARROW_WIDTH,
    Format,
    console,
    print_json,
    show_table,
)
from dlr.job import report
from dlr.job.lookup import require_namespace
from dlr.job.wording import plain, utc_now
from dlr.kube.api import ELASTICJOBS, Api
from dlr.kube.connection import connect


def list_jobs(
    namespace: Namespace = None,
    all_namespaces: Annotated[
        bool, typer.Option("--all-namespaces", "-A", help="Jobs of all namespaces.")
    ] = False,
    output: Output = Format.TABLE,
    kubeconfig: Kubeconfig = None,
    context: Context = None,
) -> None:
    """List ElasticJobs."""
    api = Api(connect(kubeconfig, context, namespace))
    found = api.find(ELASTICJOBS, all_namespaces=all_namespaces)
    if not found and not all_namespaces:
        require_namespace(api)
    if output is Format.JSON:
        print_json(found)
        return
    if not found:
        where = "any namespace" if all_namespaces else f"namespace {api.namespace!r}"
        print(f"There are no ElasticJobs in {where}.", file=sys.stderr)
        return
    now = utc_now()
    rows = [report.list_row(job, now) for job in found]
    headers: tuple[str, ...] = report.LIST_COLUMNS
    narrow = sys.stdout.isatty() and console().width <= NARROW_WIDTH
    if narrow:
        headers = report.NARROW_LIST_COLUMNS
        places = [report.LIST_COLUMNS.index(header) for header in headers]
        rows = [tuple(row[place] for place in places) for row in rows]
    if all_namespaces:
        headers = ("NAMESPACE", *headers)
        rows = [(job["metadata"]["namespace"], *row) for job, row in zip(found, rows, strict=True)]
    show_table(headers, rows, one_line=True)
    if narrow:
        for job in found:
            if why := report.why_line(job):
                print(f"{job['metadata']['name']}: {plain(why)}")
