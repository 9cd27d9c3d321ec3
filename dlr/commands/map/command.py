"""The command `dlr map`, with its options."""

from __future__ import annotations

import math
import re
import sys
from pathlib import Path
from typing import Annotated

import typer

from crds.intervals import LIMIT
from crds.shard_set import MAX_SHARD_RETRIES
from dlr.client.image import default_image
from dlr.commands.errors import CommandError
from dlr.commands.job.file import read_documents
from dlr.commands.map.follow import conclude, follow, interrupted
from dlr.commands.map.manifest import MapWorkers
from dlr.commands.map.submission import Submitted, attach, new_name, submit
from dlr.commands.options import (
    ClusterOptions,
    complete_job_name,
    new_job_name,
    not_empty,
    object_name,
    with_options,
)
from dlr.convert.reading import NotConvertible, refuse_misshapen
from dlr.kube.api import JSON, Api
from dlr.kube.errors import ApiError, UsageError
from dlr.tasks.lines import Lines, LinesError, check
from dlr.tasks.task import LineTask
from reconcilers.observed.resources import format_bytes, parse

WHERE = "What it runs in"
_RANGE = re.compile(r"(\d+)(?::(\d+))?")
MOST_WORKERS = 10_000


CommandLine = Annotated[
    str | None,
    typer.Argument(
        metavar="COMMAND",
        help="For /bin/sh, with {} for the line, quoted, and {#} for its number; without either, the "
        "line comes last.",
        show_default=False,
    ),
]
WorkerRange = Annotated[
    str, typer.Option(metavar="MIN:MAX", help="How many Pods; as many as there is work for.")
]
Slots = Annotated[int, typer.Option(min=1, max=1_024, help="Commands at a time in each Pod.")]
Retries = Annotated[
    int, typer.Option(min=0, max=MAX_SHARD_RETRIES, help="How often a line that failed is tried again.")
]
MaxFailed = Annotated[
    int | None,
    typer.Option(min=0, help="With more lines that failed for good, all ends. Default: no limit."),
]
LinesPath = Annotated[
    str | None,
    typer.Option(
        callback=not_empty, help="The lines, as a file that all Pods see, instead of standard input."
    ),
]
LogDir = Annotated[
    str | None,
    typer.Option(
        callback=not_empty,
        help="A folder that all Pods see, for a file with each line's output, instead of the Pods' logs.",
    ),
]
IdleSeconds = Annotated[int, typer.Option(min=0, help="A worker without work for so long goes, down to MIN.")]
Name = Annotated[
    str | None, typer.Option(callback=new_job_name, help="The new job's name; default: a new one.")
]
Detach = Annotated[bool, typer.Option("--detach", help="Submit, print the name, and exit.")]
Attached = Annotated[
    str | None,
    typer.Option(
        "--attach",
        callback=object_name,
        help="Follow the `dlr map` of this name again.",
        autocompletion=complete_job_name,
    ),
]
Image = Annotated[
    str,
    typer.Option(
        help="With the command, and Python 3.10 or newer; the embedded cluster needs none.",
        rich_help_panel=WHERE,
    ),
]
Pod = Annotated[
    str | None,
    typer.Option(
        callback=not_empty,
        help="A YAML file with a Pod template (`spec: …`): volumes, nodes, environment; its first "
        "container runs the command.",
        rich_help_panel=WHERE,
    ),
]
Cpu = Annotated[str, typer.Option(help="Of a slot, such as 500m.", rich_help_panel=WHERE)]
Memory = Annotated[str, typer.Option(help="Of a slot, such as 2Gi.", rich_help_panel=WHERE)]


@with_options("cluster", ClusterOptions)
def command(
    cluster: ClusterOptions,
    command_line: CommandLine = None,
    workers: WorkerRange = "1",
    slots: Slots = 1,
    retries: Retries = 2,
    max_failed: MaxFailed = None,
    lines_path: LinesPath = None,
    log_dir: LogDir = None,
    idle_seconds: IdleSeconds = 60,
    name: Name = None,
    detach: Detach = False,
    attached: Attached = None,
    image: Image = "",
    pod: Pod = None,
    cpu: Cpu = "",
    memory: Memory = "",
) -> None:
    """Run a command for each line of standard input, in Pods.

    Exit code: 0 all lines are done; 1 some are not, and are in a file; 2 an option is invalid.
    """
    if attached is not None:
        if command_line is not None:
            raise UsageError("--attach follows what is there: drop the command, or the option.")
        api = cluster.api()
        _follow(api, attach(api, attached))
        return
    if command_line is None or not command_line.strip():
        raise UsageError("There is no command to run for the lines; see `dlr map --help`.")
    least, most = worker_range(workers)
    template = read_template(pod)
    image = image or _image_of(template, cluster)
    lines = _read_lines() if lines_path is None else None
    if lines is not None and not lines:
        print("dlr: there are no lines, so nothing is run.", file=sys.stderr)
        return
    size, digest = (len(lines), lines.digest) if lines else (0, "")
    most_failed = LIMIT - 1 if max_failed is None else max_failed
    task = LineTask(command_line, size, digest, slots, retries, most_failed, lines_path or "", log_dir or "")
    requests = {key: times(text, slots) for key, text in (("cpu", cpu), ("memory", memory)) if text}
    run_in = MapWorkers(least, most, slots, idle_seconds, image, requests, template)
    api = cluster.api()
    made = submit(api, name or new_name(), task, lines, run_in)
    if detach:
        print(made.name)
    else:
        print(f"dlr: {made.name} in namespace {api.namespace}", file=sys.stderr)
        _follow(api, made)


def _follow(api: Api, made: Submitted) -> None:
    try:
        job, sets = follow(api, made, Path())
    except KeyboardInterrupt:
        raise interrupted(made) from None
    conclude(made, job, sets, Path())


def worker_range(text: str) -> tuple[int, int]:
    """Parse a number of workers, or MIN:MAX.

    Raises:
        UsageError: the text is invalid.
    """
    found = _RANGE.fullmatch(text)
    least, most = (int(found[1]), int(found[2] or found[1])) if found else (0, 0)
    if not 1 <= least <= most <= MOST_WORKERS:
        raise UsageError(
            f"--workers {text!r} must be a number or MIN:MAX, from 1 to {MOST_WORKERS}, such as 2:50."
        )
    return least, most


def times(text: str, count: int) -> str:
    """Return a multiple of an amount of CPU or memory.

    Raises:
        UsageError: the text is no amount.
    """
    try:
        amount = parse(text) * count
    except ValueError as error:
        raise UsageError(f"{error}.") from None
    if amount < 0:
        raise UsageError(f"{text!r} is less than nothing.")
    return format_bytes(int(amount)) if amount.denominator == 1 else f"{math.ceil(amount * 1000)}m"


def _read_lines() -> Lines:
    if sys.stdin is None:
        raise CommandError("Standard input is closed, and the lines come from there, or from --lines-path.")
    if sys.stdin.isatty():
        print("dlr: the lines are read from this terminal; Ctrl-D ends them", file=sys.stderr)
    lines = Lines(sys.stdin.buffer.read())
    try:
        check(lines)
    except LinesError as error:
        raise CommandError(f"Standard input: {error}.") from error
    return lines


def read_template(path: str | None) -> JSON:
    if path is None:
        return {}
    try:
        documents = read_documents(path)
    except CommandError as error:
        raise UsageError(f"--pod {error}") from error
    found = documents[0] if len(documents) == 1 else {}
    spec = found.get("spec")
    if not isinstance(spec, dict) or not spec.get("containers", True):
        raise UsageError(f"--pod {path} is no Pod template: it needs a `spec` with the Pod's containers.")
    try:
        refuse_misshapen(found)
    except NotConvertible as error:
        raise UsageError(f"--pod {path}: {error}") from None
    return {key: found[key] for key in ("metadata", "spec") if key in found}


def _image_of(template: JSON, cluster: ClusterOptions) -> str:
    """Return the image if no option names one: empty if the template does, or the embedded cluster's default.

    Raises:
        UsageError: an image is needed.
    """
    containers = template.get("spec", {}).get("containers") or [{}]
    if containers[0].get("image"):
        return ""
    try:
        image = default_image(cluster.api())
    except ApiError:  # there is no cluster to ask
        image = None
    if image is None:
        raise UsageError("Name the image that has the command: --image, or in the file of --pod.")
    return image
