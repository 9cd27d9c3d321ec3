"""`dlr job stacks`: the present stacks of all training processes.

An annotation of the job requests them, and its agents answer in their workers' status: this needs no access
to the Pods, only the permission to patch the job.
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
from dlr.job.groups import refuse_grouped
from dlr.job.lookup import get_group, get_unfinished_job, groups_of
from dlr.job.report import is_finished
from dlr.job.stacks import MOST_NAMED, Answers, ask_all, merge, stack_lines, together, without_answer
from dlr.job.wording import printable_line
from dlr.kube.api import JSON, Api
from dlr.kube.errors import UsageError

MOST_GROUPS = 32
"""Most replica groups whose stacks are shown at once."""
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
    names = [name]
    if group is not None:
        names = [get_group(api, job, group)["metadata"]["name"]]
    elif is_grouped(job):
        if rank is not None:
            refuse_grouped(job, "job stacks", f"--rank {rank}")
        names = _groups(api, job)
    found = dict(zip(names, ask_all(api, names, timeout), strict=True))
    if not any(answers.stacks for answers in found.values()):
        raise CommandError(without_answer(name, together(found.values()), timeout))
    shown = {each: [s for s in of.stacks if rank in (None, s["rank"])] for each, of in found.items()}
    if not any(shown.values()):
        count = sum(len(answers.stacks) for answers in found.values())
        raise CommandError(f"No process of {name!r} has rank {rank}: {count} have answered.")
    if output is Format.JSON:
        print_json(
            [{**s, "job": each, "where": found[each].where[s["rank"]]} for each in names for s in shown[each]]
        )
    for each, answers in found.items():
        if output is Format.TABLE and shown[each]:
            if len(found) > 1:
                show(Text(f"{each}:", style="bold"))
            _print_places(shown[each], answers)
        _tell_who_is_missing(answers, timeout)


def _groups(api: Api, job: JSON) -> list[str]:
    """Return the names of the replica groups that have not ended."""
    names = [each["metadata"]["name"] for each in groups_of(api, job) if not is_finished(each)]
    if len(names) > MOST_GROUPS:
        name = job["metadata"]["name"]
        raise UsageError(f"ElasticJob {name!r} has {len(names)} replica groups; choose one with --group.")
    return names


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
