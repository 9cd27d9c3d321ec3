"""`dlr job timeline`: a job's life as a picture in a file, or as tables in the terminal."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from dlr.commands.errors import CommandError
from dlr.commands.options import Context, JobName, Kubeconfig, Namespace
from dlr.commands.output import show_table
from dlr.job.case import Case, read_people
from dlr.job.timeline.drawing import svg_file
from dlr.job.timeline.life import JobTimeline, title
from dlr.job.timeline.tables import tables_of
from dlr.job.unreadable import naming_what_cannot_be_read
from dlr.job.verdict import verdict
from dlr.job.wording import plain
from dlr.kube.api import Api
from dlr.kube.connection import connect
from dlr.kube.errors import UsageError


def timeline(
    name: JobName,
    output: Annotated[
        Path,
        typer.Option(
            "--output",
            "-o",
            help="The SVG file to write.",
            show_default="NAME.svg",
        ),
    ] = Path(),
    text: Annotated[bool, typer.Option("--text", help="Print it as tables, and write no file.")] = False,
    namespace: Namespace = None,
    kubeconfig: Kubeconfig = None,
    context: Context = None,
) -> None:
    """Draw a job's life: workers, rounds, failures."""
    path = output if output != Path() else Path(f"{name}.svg")
    if text and output != Path():
        raise UsageError("--text writes no file; drop it, or --output.")
    if path.suffix.lower() != ".svg":
        raise UsageError(f"{path}: a timeline is a file that ends with .svg.")
    if not path.parent.is_dir():
        raise UsageError(f"{path} cannot be written: there is no folder {path.parent}.")
    api = Api(connect(kubeconfig, context, namespace))
    with naming_what_cannot_be_read(api, name):
        case = read_people(api, name, with_events=False)
        life, said = _life(case), plain(verdict(case).text)
        if text:
            print(f"{said}\n{title(life)}")
            for table in tables_of(life):
                print(f"\n{table.heading}")
                show_table(table.columns, table.rows)
            return
        drawn = svg_file(life, said)
    try:
        path.write_text(drawn, encoding="utf-8")
    except OSError as error:
        raise CommandError(f"{path} cannot be written: {error.strerror}.") from error
    print(path)


def _life(case: Case) -> JobTimeline:
    if case.life is None:
        raise CommandError(
            f"ElasticJob {case.name!r} has no history yet; its controller has to see it first."
        )
    return case.life
