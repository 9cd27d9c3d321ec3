"""`dlr job timeline`: a job's history as a picture in a file."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from dlr.commands.errors import CommandError
from dlr.commands.options import JobName, with_cluster
from dlr.job.case import read_people
from dlr.job.timeline.drawing import svg_file
from dlr.job.unreadable import naming_what_cannot_be_read
from dlr.job.verdict import verdict
from dlr.job.wording import plain
from dlr.kube.api import Api
from dlr.kube.errors import UsageError


@with_cluster
def timeline(
    api: Api,
    name: JobName,
    output: Annotated[
        Path | None,
        typer.Option("--output", "-o", help="The SVG file to write.", show_default="NAME.svg"),
    ] = None,
) -> None:
    """Draw a job's life: workers, rounds, failures."""
    path = output or Path(f"{name}.svg")
    if path.suffix.lower() != ".svg":
        raise UsageError(f"{path}: a timeline is a file that ends with .svg.")
    with naming_what_cannot_be_read(name):
        case = read_people(api, name, with_events=False)
        if case.life is None:
            raise CommandError(f"ElasticJob {name!r} has no history yet; its controller has to see it first.")
        drawn = svg_file(case.life, plain(verdict(case).text))
    try:
        path.write_text(drawn, encoding="utf-8")
    except OSError as error:
        raise CommandError(f"{path} cannot be written: {error.strerror}.") from error
    print(path)
