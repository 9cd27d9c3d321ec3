"""`dlr job stacks`: where all training processes are at this moment.

The job's annotation asks, its agents answer in their workers' status: no way into a Pod is needed, but the
right to patch the job.
"""

from __future__ import annotations

import secrets
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Annotated, Any

import typer
from rich.text import Text

from controller.wording import counted
from crds import names
from crds.protocol import NATIVE
from dlr.commands.api import ELASTICJOBS, Api
from dlr.commands.connection import connect
from dlr.commands.errors import CommandError
from dlr.commands.following import until_finished
from dlr.commands.job.lookup import get_unfinished_job, list_workers
from dlr.commands.job.merged_stacks import merge, stack_lines
from dlr.commands.job.report import current_report, sort_workers, state_of
from dlr.commands.options import Context, JobName, Kubeconfig, Namespace, Output
from dlr.commands.output import Format, parse_time, print_json, printable_line, show, some_of, utc_now
from dlr.commands.waiting import waiting_for

JSON = dict[str, Any]

RUNNING = "Running"
"""Only in this state of an agent there are processes."""
ANSWER_SECONDS, NATIVE_SECONDS = 15.0, 60.0
TIME_CHARACTERS = len("2026-01-01T00:00:00Z")
"""With these a request begins."""
MOST_NAMED = 8
"""Of the workers that have not answered, and of those without processes."""


@dataclass(frozen=True)
class Asked:
    """What became of one request."""

    stacks: Sequence[JSON]
    """As `RankStack`, of those who answered."""
    where: Mapping[int, str]
    """Pod and node, by rank."""
    silent: Sequence[str]
    """Workers that train and have not answered."""
    idle: Sequence[str]
    """Workers without processes, and their states."""


def read(request: str, workers: Sequence[JSON]) -> Asked:
    """Read the answers to one request."""
    where: dict[int, str] = {}
    stacks, silent, idle = [], [], []
    for worker in sort_workers(workers):
        name = worker["metadata"]["name"]
        answer = current_report(worker).get("askedStacks") or {}
        if answer.get("request") == request:
            status = worker["status"]
            node = f" on {status['nodeName']}" if status.get("nodeName") else ""
            stacks += answer["stacks"]
            where |= {stack["rank"]: f"{status.get('podName') or name}{node}" for stack in answer["stacks"]}
        elif (state := state_of(worker)) == RUNNING:
            silent.append(name)
        else:
            idle.append(f"{name} ({state or 'no Pod yet'})")
    return Asked(stacks, where, silent, idle)


def stacks(
    name: JobName,
    rank: Annotated[
        int | None, typer.Option(min=0, metavar="R", help="Show this process alone, by its global rank.")
    ] = None,
    native: Annotated[
        bool,
        typer.Option(
            "--native", help="With the frames of C and C++: where the image has py-spy, and it may trace."
        ),
    ] = False,
    timeout: Annotated[
        float | None,
        typer.Option(
            min=1, max=300, metavar="SECONDS", help="Wait so long for answers. [default: 15; --native: 60]"
        ),
    ] = None,
    output: Output = Format.TABLE,
    namespace: Namespace = None,
    kubeconfig: Kubeconfig = None,
    context: Context = None,
) -> None:
    """Show where all training processes are at this moment: equal stacks once, the odd ones first."""
    api = Api(connect(kubeconfig, context, namespace))
    ended = f"none of its processes runs any more; `dlr job diagnose {name}` says how it ended"
    get_unfinished_job(api, name, ended)
    timeout = timeout or (NATIVE_SECONDS if native else ANSWER_SECONDS)
    asked = ask(api, name, timeout, native=native)
    if not asked.stacks:
        raise CommandError(without_answer(name, asked, timeout))
    shown = [stack for stack in asked.stacks if rank in (None, stack["rank"])]
    if not shown:
        raise CommandError(f"No process of {name!r} has rank {rank}: {len(asked.stacks)} have answered.")
    if output is Format.JSON:
        print_json([{**stack, "where": asked.where[stack["rank"]]} for stack in shown])
    else:
        _print_places(shown, asked)
    _tell_who_is_missing(asked, timeout)


def ask(api: Api, name: str, timeout: float, *, native: bool = False) -> Asked:
    """Ask all agents of a job where their processes are, and wait so many seconds for answers."""
    request = f"{utc_now():%Y-%m-%dT%H:%M:%SZ}-{secrets.token_hex(4)}{NATIVE if native else ''}"
    api.patch(ELASTICJOBS, name, patch={"metadata": {"annotations": {names.ANNOTATION_STACKS: request}}})
    with waiting_for("the agents' answers"):
        *_, last = until_finished(
            lambda: read(request, list_workers(api, name)),
            lambda asked: not asked.silent,
            within_seconds=timeout,
        )
    return last


def asked_at(request: str) -> datetime | None:
    """When it was asked, as `ask` writes it; None where somebody has set the annotation by hand."""
    return parse_time(request[:TIME_CHARACTERS])


def without_answer(name: str, asked: Asked, timeout: float) -> str:
    """Why there are no stacks at all."""
    if asked.silent:
        asked_workers = counted(len(asked.silent), "worker")
        return (
            f"No agent has answered within {timeout:g} s, of {asked_workers} of {name!r} that train: they "
            "are older than this dlr, or cannot reach the API server."
        )
    if asked.idle:
        return f"No process of {name!r} runs just now: {some_of(asked.idle, MOST_NAMED)}."
    return f"The job {name!r} has no workers now."


def _print_places(stacks: Sequence[JSON], asked: Asked) -> None:
    places = merge(stacks)
    head = f"{len(stacks)} process{'es' if len(stacks) > 1 else ''} at {len(places)} place"
    show(Text(f"{head}{'s' if len(places) > 1 else ''}, the innermost frame first:", style="bold"))
    for line in stack_lines(places, asked.where):
        print(printable_line(line))


def _tell_who_is_missing(asked: Asked, timeout: float) -> None:
    if asked.silent:
        print(f"No answer within {timeout:g} s: {some_of(asked.silent, MOST_NAMED)}", file=sys.stderr)
    if asked.idle:
        print(f"Without processes: {some_of(asked.idle, MOST_NAMED)}", file=sys.stderr)
