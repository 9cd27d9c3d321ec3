"""`dlr job timeline`: fetch, draw, write a file."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Annotated

import typer

from dlr.commands.api import EVENTS, Api
from dlr.commands.connection import connect
from dlr.commands.errors import CommandError
from dlr.commands.job import report
from dlr.commands.job.goodput import account_of
from dlr.commands.job.lookup import get_job, list_workers
from dlr.commands.job.timeline.life import Life, NoHistory, life_of
from dlr.commands.options import Context, JobName, Kubeconfig, Namespace
from dlr.commands.output import utc_now


def timeline(
    name: JobName,
    output: Annotated[
        Path,
        typer.Option(
            "--output",
            "-o",
            help="The file to write: .svg, .png, or .html (the picture with tables).",
            show_default="NAME.svg",
        ),
    ] = Path(),
    namespace: Namespace = None,
    kubeconfig: Kubeconfig = None,
    context: Context = None,
) -> None:
    """Draw a job's life: what its workers did when, rounds, failures, and what its time came to."""
    path = output if output != Path() else Path(f"{name}.svg")
    draw = _drawer(path)
    api = Api(connect(kubeconfig, context, namespace))
    job, workers, now = get_job(api, name), list_workers(api, name), utc_now()
    events = report.job_events(api.find(EVENTS), job)
    account = account_of(job, workers, now)
    try:
        life = life_of(job, workers, events, account.ratio if account else None, now)
    except NoHistory:
        raise CommandError(
            f"ElasticJob {name!r} has no history yet; its controller has to see it first."
        ) from None
    try:
        path.write_bytes(draw(life))
    except OSError as error:
        raise CommandError(f"{path} cannot be written: {error.strerror}.") from error
    print(path)


def _drawer(path: Path) -> Callable[[Life], bytes]:
    """By the file's ending. What draws is imported before the cluster is asked: it may not be installed."""
    from dlr.commands.job.timeline.drawing import draw_png, draw_svg
    from dlr.commands.job.timeline.page import page

    drawers: dict[str, Callable[[Life], bytes]] = {
        ".svg": lambda life: draw_svg(life).encode(),
        ".png": draw_png,
        ".html": lambda life: page(life, draw_svg(life)).encode(),
    }
    drawer = drawers.get(path.suffix.lower())
    if drawer is None:
        raise CommandError(f"{path}: a timeline is a file that ends with {', '.join(drawers)}.")
    return drawer
