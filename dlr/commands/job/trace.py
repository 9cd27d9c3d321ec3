"""`dlr job trace`: a job's history as a file for Perfetto."""

from __future__ import annotations

import json
import sys

from dlr.commands.errors import CommandError
from dlr.commands.options import JobName, with_cluster
from dlr.job.case import read_people
from dlr.job.trace import chrome_trace
from dlr.job.unreadable import naming_what_cannot_be_read
from dlr.kube.api import Api
from reconcilers.tracing.spans import spans_of


@with_cluster
def trace(api: Api, name: JobName) -> None:
    """Print a job's life as a trace for Perfetto."""
    if sys.stdout.isatty():
        raise CommandError(f"a trace is for a file: dlr job trace {name} > {name}.json")
    with naming_what_cannot_be_read(name):
        case = read_people(api, name, with_events=False)
        made = chrome_trace(spans_of(case.job, case.workers), case.now)
    print(json.dumps(made))
