"""`dlr job list`."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from datetime import datetime
from typing import Annotated

import typer

from dlr.commands.options import Output, with_cluster
from dlr.commands.output import Format, cell, is_narrow, print_json, show, show_table
from dlr.job import report
from dlr.job.groups import GROUP_MARK, headline_of_jobs, list_row, tree
from dlr.job.lookup import require_namespace
from dlr.job.unreadable import of_all
from dlr.job.wording import utc_now
from dlr.kube.api import ELASTICJOBS, JSON, Api


@with_cluster
def list_jobs(
    api: Api,
    all_namespaces: Annotated[
        bool, typer.Option("--all-namespaces", "-A", help="Jobs of all namespaces.")
    ] = False,
    output: Output = Format.TABLE,
) -> None:
    """List ElasticJobs."""
    found = api.find(ELASTICJOBS, all_namespaces=all_namespaces)
    if not found and not all_namespaces:
        require_namespace(api)
    if output is Format.JSON:
        print_json(found)
        return
    if not found:
        where = "any namespace" if all_namespaces else f"namespace {api.namespace!r}"
        print(f"There are no ElasticJobs in {where}. Submit one: dlr job submit -f job.yaml", file=sys.stderr)
        return
    narrow, now = is_narrow(), utc_now()
    headline, rows = of_all(found, lambda jobs: (headline_of_jobs(jobs), _rows(jobs, now)))
    if sys.stdout.isatty():
        print(f"{headline}\n")
    columns = [*(["NAMESPACE"] if all_namespaces else [])]
    columns += report.NARROW_LIST_COLUMNS if narrow else report.LIST_COLUMNS
    show_table(columns, [[row[column] for column in columns] for row in rows], one_line=True)
    for row in rows if narrow else ():
        if row["WHY"]:
            where = f"{row['NAMESPACE']}/" if all_namespaces else ""
            show(cell(f"{where}{row['JOB']}: {row['WHY']}"))


def _rows(jobs: Sequence[JSON], now: datetime) -> list[dict[str, object]]:
    """Return the cells of each job by column, with its bare name as JOB."""
    rows = []
    for job, is_group in tree(jobs):
        row = dict(zip(report.LIST_COLUMNS, list_row(job, now), strict=True))
        row |= {"NAMESPACE": job["metadata"]["namespace"], "JOB": row["NAME"]}
        rows.append(row | {"NAME": f"{GROUP_MARK if is_group else ''}{row['NAME']}"})
    return rows
