"""`dlr node-check` of a cluster's nodes: make the NodeCheck, stay with it, and say what it found."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterator, Mapping
from datetime import datetime
from typing import Any

from rich.console import Group, RenderableType
from rich.live import Live
from rich.table import Table
from rich.text import Text

from controller.wording import counted
from crds import names
from crds.further_nodes import whole
from crds.nodecheck import NodeCheckPhase
from dlr.commands.errors import CommandError, CouldNotTell, Interrupted
from dlr.commands.node_check import view
from dlr.commands.node_check.done import await_deeds
from dlr.commands.node_check.happenings import happenings
from dlr.commands.output import Format, cell, console, print_json, show, table
from dlr.job.check_outcome import as_json, health, message
from dlr.job.lookup import get_job, require_namespace
from dlr.job.wording import utc_now
from dlr.kube.api import ELASTICWORKERS, NODECHECKS, Api
from dlr.kube.errors import ApiError
from dlr.kube.following import until_finished
from healthcheck.local import Health

JSON = dict[str, Any]

LINES_BESIDE_ROWS = 7
"""Of a terminal: the head, with a phase of two lines, the headers, what is left out, and the cursor's."""


def create(api: Api, check: JSON) -> JSON:
    """The NodeCheck as the server has made it.

    Raises:
        CommandError: the server refused it; with the paths of the fields that it did not like.
    """
    if job := check["spec"].get("jobName"):
        get_job(api, job)
    try:
        created, warnings = api.create(NODECHECKS, check)
    except ApiError as failure:
        if failure.reason == "NotFound" and failure.names_object:
            require_namespace(api)
        raise CommandError(_refusal(api, check, failure)) from failure
    for warning in warnings:
        print(f"dlr: warning: {warning}", file=sys.stderr)
    return created


def _refusal(api: Api, check: JSON, failure: ApiError) -> str:
    if failure.reason == "AlreadyExists":
        name = check["metadata"]["name"]
        return (
            f"There is a NodeCheck {name!r} in namespace {api.namespace!r} already; choose another --name, "
            f"or delete it first (kubectl delete nc {name} -n {api.namespace})."
        )
    return "\n     ".join(map(str, failure.causes)) or str(failure)


def announce(created: JSON, output: Format) -> None:
    """Print the check's name and how to look at it, for a caller that does not wait."""
    name, namespace = created["metadata"]["name"], created["metadata"]["namespace"]
    if output is Format.JSON:
        print_json({"name": name, "namespace": namespace})
    else:
        print(
            f"nodecheck {namespace}/{name} created; "
            f"look at it with: kubectl get nc {name} -n {namespace} -o wide"
        )


def wait(api: Api, created: JSON, output: Format) -> Health:
    """Stay until the check has finished, and show what it found.

    Raises:
        Interrupted: by Ctrl-C.
        CouldNotTell: the check failed, or somebody deleted it.
    """
    name = created["metadata"]["name"]
    try:
        check = _show(api, _looks(api, created), output)
    except KeyboardInterrupt:
        raise Interrupted(
            f"The check goes on without you. See it: kubectl get nc {name} -n {api.namespace} -o wide. "
            f"End it: kubectl delete nc {name} -n {api.namespace}."
        ) from None
    if check["status"]["phase"] == NodeCheckPhase.FAILED:
        raise CouldNotTell(f"The check {name!r} could not be carried out: {message(check)}")
    return health(check)


def _looks(api: Api, created: JSON) -> Iterator[view.Look]:
    return until_finished(lambda: _look(api, created), lambda look: view.is_finished(look.check))


def _look(api: Api, created: JSON) -> view.Look:
    metadata = created["metadata"]
    try:
        check = api.get(NODECHECKS, metadata["name"])
    except ApiError as failure:
        if failure.reason == "NotFound":
            raise _gone(metadata["name"]) from failure
        raise
    if check["metadata"]["uid"] != metadata["uid"]:
        raise _gone(metadata["name"])
    check = whole(check)
    look = view.Look(check)
    if not look.nodes or view.is_finished(check):
        return look
    job = check["spec"].get("jobName")
    of_check = f"{names.LABEL_JOB}={job}" if job else f"{names.LABEL_CHECK}={metadata['name']}"
    return view.Look(check, api.find(ELASTICWORKERS, label_selector=of_check))


def _gone(name: str) -> CouldNotTell:
    return CouldNotTell(f"The check {name!r} was deleted before it had finished.")


def _show(api: Api, looks: Iterator[view.Look], output: Format) -> JSON:
    """Show each look as suits the output, and the end; returns the finished NodeCheck."""
    began = time.monotonic()

    def waited_seconds() -> float:
        return time.monotonic() - began

    if output is Format.JSON:
        *_, last = looks
        print_json(as_json(last.check, await_deeds(api, last.check)))
    elif sys.stdout.isatty():
        last = _redraw(api, looks, waited_seconds)
    else:
        last = _print_news(looks, waited_seconds)
        show(final(last.check, await_deeds(api, last.check), utc_now()))
    return last.check


def _redraw(api: Api, looks: Iterator[view.Look], waited_seconds: Callable[[], float]) -> view.Look:
    with Live(console=console(), auto_refresh=False) as live:
        for look in looks:
            if view.is_finished(look.check):
                shown = final(look.check, await_deeds(api, look.check), utc_now())
            else:
                most_rows = max(1, live.console.height - LINES_BESIDE_ROWS)
                shown = running(look, utc_now(), waited_seconds(), most_rows)
            live.update(shown, refresh=True)
    return look


def _print_news(looks: Iterator[view.Look], waited_seconds: Callable[[], float]) -> view.Look:
    told: set[str] = set()
    for look in looks:
        for line in happenings(look, waited_seconds()):
            if line not in told:
                told.add(line)
                show(cell(f"{datetime.now().astimezone():%H:%M:%S}  {line}"))
    return look


def running(look: view.Look, now: datetime, waited_seconds: float, most_rows: int) -> RenderableType:
    parts = [_head(look, now, waited_seconds)]
    if rows := view.live_rows(look):
        parts += [Text(""), table(view.LIVE_COLUMNS, view.most_telling(rows, most_rows))]
    if len(rows) > most_rows:
        parts.append(cell(f"… and {counted(len(rows) - most_rows, 'more node')}"))
    return Group(*parts)


def final(check: JSON, done: Mapping[str, str], now: datetime) -> RenderableType:
    parts = [_head(view.Look(check), now, 0.0)]
    for columns, rows in (
        (view.FINAL_COLUMNS, view.final_rows(check)),
        (view.LINK_COLUMNS, view.link_rows(check)),
        (view.DOMAIN_COLUMNS, view.domain_rows(check)),
    ):
        if rows:
            parts += [Text(""), table(columns, rows)]
    if check["status"]["phase"] == NodeCheckPhase.SUCCEEDED:
        for lines in (view.reports_on_nodes(check, done), view.closing_lines(check)):
            parts += [Text(""), *(cell(line) for line in lines)] if lines else []
    return Group(*parts)


def _head(look: view.Look, now: datetime, waited_seconds: float) -> RenderableType:
    head = Table.grid(padding=(0, 2))
    for label, text in view.head(look, now, waited_seconds):
        head.add_row(Text(label, style="bold"), cell(text))
    return head
