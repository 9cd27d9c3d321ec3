"""`dlr job timeline`: fetch, draw, and write a file or to the terminal."""

from __future__ import annotations

import shutil
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Annotated

import typer

from dlr.commands.job.timeline.text import text_of
from dlr.commands.options import Context, JobName, Kubeconfig, Namespace
from dlr.job.goodput import account_of, redone
from dlr.job.lookup import get_job, list_workers
from dlr.job.timeline.life import Life, NoHistory, life_of
from dlr.job.wording import utc_now
from dlr.kube.api import Api
from dlr.kube.connection import connect
from dlr.kube.errors import CommandError, UsageError
from dlr.kube.waiting import waiting_for

PIPE_COLUMNS = 120
ENDINGS = (".svg", ".png", ".html")


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
    text: Annotated[bool, typer.Option("--text", help="Draw it in the terminal, and write no file.")] = False,
    namespace: Namespace = None,
    kubeconfig: Kubeconfig = None,
    context: Context = None,
) -> None:
    """Draw a job's life: what its workers did when, rounds, failures, and what its time came to."""
    path = output if output != Path() else Path(f"{name}.svg")
    if text and output != Path():
        raise UsageError("--text writes no file; drop it, or --output.")
    draw = _as_text if text else _checked_drawer(path)
    life = _life(Api(connect(kubeconfig, context, namespace)), name)
    with waiting_for("the drawing"):
        drawn = draw(life)
    if text:
        sys.stdout.write(drawn.decode())
        return
    try:
        path.write_bytes(drawn)
    except OSError as error:
        raise CommandError(f"{path} cannot be written: {error.strerror}.") from error
    print(path)


def _as_text(life: Life) -> bytes:
    width = shutil.get_terminal_size((PIPE_COLUMNS, 0)).columns
    return ("\n".join(text_of(life, width)) + "\n").encode()


def _checked_drawer(path: Path) -> Callable[[Life], bytes]:
    """What draws it, if such a file can be drawn and written there."""
    if path.suffix.lower() not in ENDINGS:
        raise UsageError(f"{path}: a timeline is a file that ends with {', '.join(ENDINGS)}.")
    if not path.parent.is_dir():
        raise UsageError(f"{path} cannot be written: there is no folder {path.parent}.")
    return _drawer(path)


def _life(api: Api, name: str) -> Life:
    job, workers, now = get_job(api, name), list_workers(api, name), utc_now()
    account = account_of(job, workers, now)
    try:
        ratio = account.ratio if account else None
        return life_of(job, workers, ratio, now, redone(account))
    except NoHistory:
        raise CommandError(
            f"ElasticJob {name!r} has no history yet; its controller has to see it first."
        ) from None


def _drawer(path: Path) -> Callable[[Life], bytes]:
    """Return what draws a file of that ending. Imported before the cluster is asked: it may be missing."""
    from dlr.commands.job.timeline.drawing import PHONE, draw_png, draw_svg
    from dlr.commands.job.timeline.page import page

    drawers: dict[str, Callable[[Life], bytes]] = {
        ".svg": lambda life: draw_svg(life).encode(),
        ".png": draw_png,
        ".html": lambda life: page(life, draw_svg(life), draw_svg(life, PHONE)).encode(),
    }
    return drawers[path.suffix.lower()]
