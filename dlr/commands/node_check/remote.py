"""`dlr node-check` of a cluster's nodes: creates the NodeCheck, follows it, and shows its findings."""

from __future__ import annotations

import time
from collections.abc import Mapping
from datetime import datetime

from rich.console import Console, Group, RenderableType
from rich.text import Text

from controller.wording import counted
from crds import names
from crds.nodecheck import NodeCheckPhase
from dlr.commands import creation
from dlr.commands.errors import CouldNotTell, Interrupted
from dlr.commands.node_check import view
from dlr.commands.node_check.done import await_deeds
from dlr.commands.node_check.news import news
from dlr.commands.output import Format, cell, console, print_json, show, table, verdict_line
from dlr.job.check_outcome import as_json, health, message
from dlr.job.lookup import get_job
from dlr.job.wording import printable_line, utc_now
from dlr.kube.api import ELASTICWORKERS, JSON, NODECHECKS, Api
from dlr.kube.errors import ApiError
from dlr.kube.following import until_finished
from healthcheck.local import LocalHealth

LINES_AROUND_TABLE = 4
"""An empty line, the header, the line with the number of omitted rows, and the cursor's."""
FEWEST_ROWS, MOST_OTHERS = 3, 5
"""Fewest rows of a table on a terminal, and most rows of links or domains."""


def create(api: Api, check: JSON) -> JSON:
    """Create the NodeCheck, and return it as created.

    Raises:
        CommandError: the server refused it; the message has the paths of the invalid fields.
    """
    if job := check["spec"].get("jobName"):
        get_job(api, job)
    return creation.create(
        api, NODECHECKS, check, lambda failure: "\n     ".join(map(str, failure.causes)) or str(failure)
    )


def announce(created: JSON, output: Format) -> None:
    """Print the check's name and the command that shows it, for a caller that does not wait."""
    name, namespace = created["metadata"]["name"], created["metadata"]["namespace"]
    if output is Format.JSON:
        print_json({"name": name, "namespace": namespace})
    else:
        print(
            f"nodecheck {namespace}/{name} created; "
            f"look at it with: kubectl get nc {name} -n {namespace} -o wide"
        )


def wait(api: Api, created: JSON, output: Format) -> LocalHealth:
    """Print the progress of the check until its end, and then its findings.

    Raises:
        Interrupted: by Ctrl-C.
        CouldNotTell: the check failed, or was deleted.
    """
    name = created["metadata"]["name"]
    try:
        check = _follow(api, created, quiet=output is Format.JSON)
        done = await_deeds(api, check)
    except KeyboardInterrupt:
        raise Interrupted(
            f"The check goes on without you. See it: kubectl get nc {name} -n {api.namespace} -o wide. "
            f"End it: kubectl delete nc {name} -n {api.namespace}."
        ) from None
    if output is Format.JSON:
        print_json(as_json(check, done))
    else:
        show(report(check, done, console()))
    if check["status"]["phase"] == NodeCheckPhase.FAILED:
        raise CouldNotTell(f"The check {name!r} could not be carried out: {message(check)}")
    return health(check)


def _follow(api: Api, created: JSON, quiet: bool) -> JSON:
    """Print the progress, unless `quiet`; return the finished check."""
    began, printed = time.monotonic(), set[str]()
    for check, workers in until_finished(lambda: _look(api, created), lambda look: _is_finished(look[0])):
        for line in () if quiet else news(check, workers, time.monotonic() - began):
            if line not in printed:
                printed.add(line)
                show(cell(f"{datetime.now().astimezone():%H:%M:%S}  {line}"))
    return check


def _look(api: Api, created: JSON) -> tuple[JSON, list[JSON]]:
    """Return the check, and its workers while it runs."""
    metadata = created["metadata"]
    gone = CouldNotTell(f"The check {metadata['name']!r} was deleted before it had finished.")
    try:
        check = api.get(NODECHECKS, metadata["name"])
    except ApiError as failure:
        if failure.reason == "NotFound":
            raise gone from failure
        raise
    if check["metadata"]["uid"] != metadata["uid"]:
        raise gone
    if _is_finished(check) or not (check.get("status") or {}).get("nodes"):
        return check, []
    job = check["spec"].get("jobName")
    of_job = f"{names.LABEL_JOB}={job},{names.LABEL_TYPE}={names.WORKER}"
    of_check = of_job if job else f"{names.LABEL_CHECK}={metadata['name']}"
    return check, api.find(ELASTICWORKERS, label_selector=of_check)


def _is_finished(check: JSON) -> bool:
    phase = (check.get("status") or {}).get("phase")
    return phase in (NodeCheckPhase.SUCCEEDED, NodeCheckPhase.FAILED)


def report(check: JSON, done: Mapping[str, str], screen: Console) -> RenderableType:
    """Draw the verdict, advice, and tables; on a terminal with as many rows as fit."""
    parts: list[RenderableType] = []
    blocks: list[list[str]] = []
    if check["status"]["phase"] == NodeCheckPhase.SUCCEEDED:
        parts = [verdict_line(health(check), view.summary(check))]
        blocks = [view.reports_on_nodes(check, done), view.notes(check)]
    parts.append(cell(view.head(check, utc_now())))
    for lines in filter(None, blocks):
        parts += [Text(""), *(Text(printable_line(line)) for line in lines)]
    for what, columns, rows in (
        ("domain", view.DOMAIN_COLUMNS, view.domain_rows(check)),
        ("link", view.LINK_COLUMNS, view.link_rows(check)),
        ("node", view.NODE_COLUMNS, view.node_rows(check)),
    ):
        if not rows:
            continue
        most = len(rows)
        if screen.is_terminal:
            room = screen.height - len(screen.render_lines(Group(*parts))) - LINES_AROUND_TABLE
            most = max(FEWEST_ROWS, room if what == "node" else min(room, MOST_OTHERS))
        parts += [Text(""), table(columns, rows[:most], screen.width if screen.is_terminal else None)]
        if len(rows) > most:
            name, namespace = check["metadata"]["name"], check["metadata"]["namespace"]
            more = counted(len(rows) - most, f"more {what}")
            parts.append(Text(f"… and {more}: kubectl describe nc {name} -n {namespace}", "dim"))
    return Group(*parts)
