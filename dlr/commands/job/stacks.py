"""`dlr job stacks`: where all training processes are at this moment.

The job's annotation asks, its agents answer in their workers' status: no way into a Pod is needed, but the
right to patch the job.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from typing import Annotated

import typer
from rich.text import Text

from controller.wording import some_of
from crds.grouping import is_grouped
from dlr.commands.errors import CommandError
from dlr.commands.options import Group, JobName, Output, with_cluster
from dlr.commands.output import Format, print_json, show
from dlr.job.groups import index_of, refuse_grouped
from dlr.job.lookup import get_group, get_unfinished_job, groups_of
from dlr.job.report import is_finished
from dlr.job.stacks import MOST_NAMED, Answers, ask, ask_all, merge, stack_lines, together, without_answer
from dlr.job.wording import printable_line
from dlr.kube.api import JSON, Api
from dlr.kube.errors import UsageError

MOST_GROUPS = 32
"""Replica groups whose stacks are shown at once."""
ANSWER_SECONDS = 15.0


@with_cluster
def stacks(
    api: Api,
    name: JobName,
    rank: Annotated[
        int | None, typer.Option(min=0, metavar="R", help="Show this process alone, by its global rank.")
    ] = None,
    group: Group = None,
    timeout: Annotated[
        float, typer.Option(min=1, max=300, metavar="SECONDS", help="Wait so long for answers.")
    ] = ANSWER_SECONDS,
    output: Output = Format.TABLE,
) -> None:
    """Show where all training processes are now."""
    ended = (
        f"none of its processes runs any more; `dlr job diagnose {name} -n {api.namespace}` says how it ended"
    )
    job = get_unfinished_job(api, name, ended)
    if group is not None:
        name = get_group(api, job, group)["metadata"]["name"]
    elif is_grouped(job):
        if rank is not None:
            refuse_grouped(job, "job stacks", f"--rank {rank}")
        _stacks_of_groups(api, job, timeout, output)
        return
    answers = ask(api, name, timeout)
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


def _stacks_of_groups(api: Api, job: JSON, timeout: float, output: Format) -> None:
    """Show the stacks of all replica groups, group by group."""
    name = job["metadata"]["name"]
    groups = [each for each in groups_of(api, job) if not is_finished(each)]
    if len(groups) > MOST_GROUPS:
        raise UsageError(f"ElasticJob {name!r} has {len(groups)} replica groups; choose one with --group.")
    found = ask_all(api, [each["metadata"]["name"] for each in groups], timeout)
    if not any(answers.stacks for answers in found):
        raise CommandError(without_answer(name, together(found), timeout))
    pairs = [*zip(groups, found, strict=True)]
    if output is Format.JSON:
        print_json(
            [
                {**stack, "group": index_of(group), "where": answers.where[stack["rank"]]}
                for group, answers in pairs
                for stack in answers.stacks
            ]
        )
    for group, answers in pairs:
        if output is Format.TABLE and answers.stacks:
            show(Text(f"Group {index_of(group)}, {group['metadata']['name']}:", style="bold"))
            _print_places(answers.stacks, answers)
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
