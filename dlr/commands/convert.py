"""`dlr convert`: manifests of other operators as ElasticJobs."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from typing import Annotated

import typer

from dlr.commands.errors import CommandError
from dlr.commands.job.file import STDIN, read_documents
from dlr.commands.options import none_empty
from dlr.commands.output import as_yaml
from dlr.convert import NotConvertible, convert
from dlr.convert.reading import Remark

EXIT_WITH_LOSSES = 3
"""Exit code if a part of the manifests could not be converted."""


def command(
    files: Annotated[
        list[str],
        typer.Option(
            "--file",
            "-f",
            callback=none_empty,
            help=f"A YAML file; {STDIN} is standard input. May be repeated: a TrainJob, and its runtime.",
        ),
    ],
) -> None:
    """Print manifests of other operators as ElasticJobs.

    It takes TrainJobs with their runtime, PyTorchJobs, JobSets, Jobs and DLRover's ElasticJobs; other objects
    stay as they are. No cluster is asked.

    Exit code: 0 all is carried over; 3 not all is, and stderr says what; 1 nothing can be converted.
    """
    documents = [document for file in files for document in read_documents(file)]
    try:
        found = convert(documents)
    except NotConvertible as error:
        raise CommandError(f"{', '.join(files)}: {error}") from error
    print("".join(_comment(f"Not converted: {reason}") for reason in found.refused), end="")
    for number, (document, remarks) in enumerate(found.documents):
        print("---\n" * (number > 0) + comments(remarks) + as_yaml([document]), end="")
    for reason in found.refused:
        print(f"dlr: not converted: {reason}", file=sys.stderr)
    for remark in found.losses:
        print(f"dlr: not carried over: {remark}", file=sys.stderr)
    if found.refused or found.losses:
        raise typer.Exit(EXIT_WITH_LOSSES)


def comments(remarks: Sequence[Remark]) -> str:
    """Return comments about fields that are not carried over, and then about those that are not needed."""
    lines = [_comment(f"Not carried over: {remark}") for remark in remarks if remark.is_loss]
    lines += [_comment(f"Not needed: {remark}") for remark in remarks if not remark.is_loss]
    return "".join(lines)


def _comment(text: str) -> str:
    """Return a comment in one line, even if the text quotes several lines."""
    return f"# {' '.join(text.split())}\n"
