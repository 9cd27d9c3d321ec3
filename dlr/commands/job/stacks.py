"""`dlr job stacks`: where all training processes are at this moment.

The job's annotation asks, its agents answer in their workers' status: no way into a Pod is needed, but the
right to patch the job.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from typing import Annotated, Any

import typer
from rich.text import Text

from controller.wording import some_of
from dlr.commands.errors import CommandError
from dlr.commands.options import Context, JobName, Kubeconfig, Namespace, Output
from dlr.commands.output import Format, print_json, show
from dlr.job.lookup import get_unfinished_job
from dlr.job.stacks import MOST_NAMED, Answers, ask, merge, stack_lines, without_answer
from dlr.job.wording import printable_line
from dlr.kube.api import Api
from dlr.kube.connection import connect

JSON = dict[str, Any]


ANSWER_SECONDS, NATIVE_SECONDS = 15.0, 60.0


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
    answers = ask(api, name, timeout, native=native)
    if not answers.stacks:
        raise CommandError(without_answer(name, answers, timeout))
    shown = [stack for stack in answers.stacks if rank in (None, stack["rank"])]
    if not shown:
        raise CommandError(f"No process of {name!r} has rank {rank}: {len(answers.stacks)} have answered.")
    if output is Format.JSON:
        print_json([{**stack, "where": answers.where[stack["rank"]]} for stack in shown])
    else:
        _print_places(shown, answers)
    _tell_who_is_missing(answers, timeout)


def _print_places(stacks: Sequence[JSON], answers: Answers) -> None:
    places = merge(stacks)
    head = f"{len(stacks)} process{'es' if len(stacks) > 1 else ''} at {len(places)} place"
    show(Text(f"{head}{'s' if len(places) > 1 else ''}, the innermost frame first:", style="bold"))
    for line in stack_lines(places, answers.where):
        print(printable_line(line))


def _tell_who_is_missing(answers: Answers, timeout: float) -> None:
    if answers.silent:
        print(f"No answer within {timeout:g} s: {some_of(answers.silent, MOST_NAMED)}", file=sys.stderr)
    if answers.idle:
        print(f"Without processes: {some_of(answers.idle, MOST_NAMED)}", file=sys.stderr)
