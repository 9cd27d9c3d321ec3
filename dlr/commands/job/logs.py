"""`dlr job logs`: the output of the workers, of one rank, of all, or of the one that failed first.

With `--failed` the Pod's log is shown up to the failure, since processes that restart in place continue the
same log. Once the Pod is gone, the end of the log in the status is shown.
"""

from __future__ import annotations

import re
import sys
from collections import deque
from datetime import timedelta
from typing import Annotated, Any

import typer

from controller.wording import counted
from dlr.client.job import Job
from dlr.commands.options import Group, JobName, with_cluster
from dlr.commands.output import show
from dlr.job.failures import Culprit, find_culprit, heading
from dlr.job.logs import lines_of, parameters_of
from dlr.job.lookup import get_group, get_job, workers_of
from dlr.job.stacks import merge, stack_lines
from dlr.job.unreadable import naming_what_cannot_be_read
from dlr.job.wording import in_command, plain, printable_line, utc_now
from dlr.kube.api import PODS, Api
from dlr.kube.errors import ApiError, UsageError

TERMINAL_COMMANDS = re.compile(r"\x1b(?!\[[0-9;:]*m)|[\x00-\x08\x0a-\x0c\x0e-\x1a\x1c-\x1f\x7f-\x9f]")
"""Control sequences in a worker's line, except colours, tabs, and carriage returns of progress bars."""
FAILED_LINES = 100
"""Number of lines with --failed and without --tail."""
LOOK_BACK = timedelta(minutes=15)
"""Length of the log to read before a failure, since a log may be a week long."""
CLOSE_BEHIND = timedelta(seconds=1)
"""Time after a process's end in which its last lines reach the log."""


@with_cluster
def logs(
    api: Api,
    name: JobName,
    rank: Annotated[int | None, typer.Option(min=0, help="Only the worker with this node rank.")] = None,
    group: Group = None,
    follow: Annotated[
        bool, typer.Option("--follow", "-f", help="Follow until the job ends, from Pod to Pod.")
    ] = False,
    tail_lines: Annotated[
        int | None, typer.Option("--tail", min=0, help="Only so many last lines a Pod.")
    ] = None,
    failed: Annotated[
        bool,
        typer.Option("--failed", help="Only the rank that failed first, up to its failure, with the error."),
    ] = False,
) -> None:
    """Print what a job's workers print."""
    if group is not None:
        name = get_group(api, get_job(api, name), group)["metadata"]["name"]
    if failed:
        if rank is not None or follow:
            raise UsageError("--failed finds the rank and the Pod itself; drop --rank and -f.")
        with naming_what_cannot_be_read(name):
            _print_failed(api, name, tail_lines)
        return
    with naming_what_cannot_be_read(name):
        lines = Job(api, get_job(api, name)).logs(rank, follow=follow, tail_lines=tail_lines)
    for line in lines:
        _print_line(line)


def _print_line(line: str) -> None:
    if sys.stdout.isatty():
        line = TERMINAL_COMMANDS.sub(" ", line)
    sys.stdout.write(f"{line}\n")
    sys.stdout.flush()


def _print_failed(api: Api, name: str, tail_lines: int | None) -> None:
    job = get_job(api, name)
    culprit = find_culprit(job, workers_of(api, job))
    if culprit is None:
        print(plain(_without_culprit(job)), file=sys.stderr)
        return
    _print_heading(culprit)
    if culprit.stacks:
        _print_section("Stacks, the innermost frame first", stack_lines(merge(culprit.stacks)))
    if lines := _pod_log(api, culprit, FAILED_LINES if tail_lines is None else tail_lines):
        _print_section(f"Log of Pod {culprit.pod} up to the failure, {counted(len(lines), 'line')}", lines)
    elif culprit.kept_log:
        _print_section("End of the process's log, as status kept it", culprit.kept_log.splitlines())
    else:
        whose = f" of Pod {culprit.pod}" if culprit.pod else ""
        print(f"The log{whose} is gone, and status kept nothing of it.", file=sys.stderr)


def _without_culprit(job: dict[str, Any]) -> str:
    """Describe a job without a failed process or Pod, which may fail by its shard sets or a deadline."""
    name, status = job["metadata"]["name"], job.get("status") or {}
    if status.get("phase") != "Failed":
        return f"Nothing has failed in ElasticJob {name!r}."
    why = ": ".join(status[each] for each in ("reason", "message") if status.get(each))
    its_logs = f"dlr job logs {in_command(job['metadata'])}"
    return f"No worker failed first in ElasticJob {name!r}; it failed by {why}. Its logs: {its_logs}"


def _print_heading(culprit: Culprit) -> None:
    from rich.table import Table
    from rich.text import Text

    head = Table.grid(padding=(0, 2))
    for label, text in heading(culprit, utc_now()):
        head.add_row(Text(label, style="bold"), Text("\n".join(map(printable_line, text.splitlines()))))
    show(head)


def _print_section(title: str, lines: list[str]) -> None:
    from rich.text import Text

    show(Text(f"\n{title}:", style="bold"))
    for line in lines:
        print(printable_line(line))


def _pod_log(api: Api, culprit: Culprit, most: int) -> list[str]:
    """Return the last lines before the failure; none if the Pod or its log is gone."""
    if culprit.pod is None:
        return []
    try:
        since = (culprit.time - LOOK_BACK).strftime("%Y-%m-%dT%H:%M:%SZ")
        parameters = parameters_of(api.get(PODS, culprit.pod)) | {"sinceTime": since}
        return _lines_before(api, culprit, parameters, most)
    except ApiError as failure:
        if failure.reason in ("NotFound", "BadRequest"):  # the Pod, or its container's log, is gone
            return []
        if not culprit.kept_log:
            raise
        why = f"the log of Pod {culprit.pod} cannot be read: {failure}"
        print(f"dlr: warning: {plain(why)}", file=sys.stderr)  # its node may be what failed
        return []


def _lines_before(api: Api, culprit: Culprit, parameters: dict[str, str | int], most: int) -> list[str]:
    kept: deque[str] = deque(maxlen=most)
    until = culprit.time + CLOSE_BEHIND
    with api.log(str(culprit.pod), parameters, follow=False) as stream:
        for moment, text in lines_of(stream):
            if moment and moment > until:
                break
            kept.append(text)
    return list(kept)
